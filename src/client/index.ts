// The declarations use `Disposable`, which the `lib` setting of the importing program may lack.
/// <reference lib="esnext.disposable" preserve="true" />
/** The client library, `quayside/client`. It needs only `fetch`. */
export type {
  BrowsedElement,
  BrowsedHolder,
  BrowseOptions,
  ElementState,
  SelectorFailure,
} from './browse.ts';
export type { Codec, SchemaInput, SchemaOutput, StandardSchema, ValidationResult } from './codec.ts';
export type { Element } from './element.ts';
export {
  type CallOutcome,
  ConnectionError,
  LeaseLostError,
  QuaysideError,
  StoppedError,
  TimeoutError,
  ValidationError,
  type ValidationIssue,
} from './errors.ts';
export type { Logger } from './logger.ts';
export type {
  CallOptions,
  ClientOptions,
  Credentials,
  InsertOptions,
  RawResponse,
  RequestMethod,
  RequestOptions,
  ReserveOptions,
  RetryOptions,
  RollbackOptions,
  StreamOptions,
  TakeOptions,
  TokenCredentials,
} from './options.ts';
export { type Name, Quayside } from './quayside.ts';
export type { Queue, QueueStatus } from './queue.ts';
export type { FailedState, Reservation } from './reservation.ts';
export type { TracingApi } from './tracing.ts';
export type { Inserted, InsertedMany } from './wire.ts';
export {
  Bury,
  RetryLater,
  Worker,
  type WorkerEvents,
  type WorkerOptions,
  type WorkerResult,
} from './worker.ts';
