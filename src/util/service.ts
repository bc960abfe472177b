/**
 * The contract of everything that lives long: listeners, engines, brokers, exchange loops.
 *
 * `start` resolves when the part is ready for use, and rejects when it never will be; it is called once.
 * `stop` lets go of everything. It is harmless before `start`, during it, and when called again: all calls
 * answer the same promise. After it nothing is left: no timer, no socket, no thread, no file handle.
 */
export interface Service {
  start(): Promise<void>;
  stop(): Promise<void>;
}
