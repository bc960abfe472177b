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

/** Services that were started one after the other, to be stopped in the reverse order. */
export class ServiceStack {
  /** What was started together is stopped together. */
  readonly #groups: (readonly Service[])[] = [];

  /** Starts a service. It is stopped even if its start fails, since a part of it may run. */
  async start(service: Service): Promise<void> {
    await this.startAll([service]);
  }

  /** As `start`, for services that do not depend on each other. Waits for all, even if one fails. */
  async startAll(services: readonly Service[]): Promise<void> {
    this.#groups.push(services);
    const outcomes = await Promise.allSettled(services.map((service) => service.start()));
    throwReasons(outcomes, 'Some parts could not be started.');
  }

  /** Stops all, the last group first. A failure does not keep the others from being stopped. */
  async stop(): Promise<void> {
    const outcomes: PromiseSettledResult<void>[] = [];
    for (let group = this.#groups.pop(); group !== undefined; group = this.#groups.pop()) {
      outcomes.push(...(await Promise.allSettled(group.toReversed().map((service) => service.stop()))));
    }
    throwReasons(outcomes, 'Some parts could not be stopped.');
  }
}

/** The same service; `explain` turns the error of a failed start into the one to report. */
export function withStartError(service: Service, explain: (error: unknown) => unknown): Service {
  return {
    start: () =>
      service.start().catch((error: unknown) => {
        throw explain(error);
      }),
    stop: () => service.stop(),
  };
}

function throwReasons(outcomes: readonly PromiseSettledResult<void>[], message: string): void {
  const reasons = outcomes.flatMap((outcome) => (outcome.status === 'rejected' ? [outcome.reason] : []));
  if (reasons.length > 0) throw reasons.length === 1 ? reasons[0] : new AggregateError(reasons, message);
}
