/**
 * The contract of every long-lived component: listeners, engines, brokers, exchange loops.
 *
 * `start` is called once. It resolves when the component is ready for use, and rejects if it cannot become so.
 * `stop` releases everything. It may be called before `start`, during it, and more than once: all calls return the same
 * promise. Once it resolves, no timer, socket, thread or file handle is left.
 */
export interface Service {
  start(): Promise<void>;
  stop(): Promise<void>;
}

/** Services that are stopped in the reverse order of their start. */
export class ServiceStack {
  /** Services of one group are started, and stopped, concurrently. */
  readonly #groups: (readonly Service[])[] = [];

  /**
   * Starts services that do not depend on each other, and waits for all, even if one fails. They are stopped later even
   * if their start fails, because parts of them may be running.
   */
  async start(services: readonly Service[]): Promise<void> {
    this.#groups.push(services);
    const outcomes = await Promise.allSettled(services.map((service) => service.start()));
    throwFailures(outcomes, 'Some parts could not be started.');
  }

  /** Stops all services, the last group first. A failure does not prevent the others from being stopped. */
  async stop(): Promise<void> {
    const outcomes: PromiseSettledResult<void>[] = [];
    for (let group = this.#groups.pop(); group !== undefined; group = this.#groups.pop()) {
      outcomes.push(...(await Promise.allSettled(group.toReversed().map((service) => service.stop()))));
    }
    throwFailures(outcomes, 'Some parts could not be stopped.');
  }
}

/** Wraps a service: `explain` converts the error of a failed start into the one to report. */
export function withStartError(service: Service, explain: (error: unknown) => unknown): Service {
  return {
    start: () =>
      service.start().catch((error: unknown) => {
        throw explain(error);
      }),
    stop: () => service.stop(),
  };
}

function throwFailures(outcomes: readonly PromiseSettledResult<void>[], message: string): void {
  const reasons = outcomes.flatMap((outcome) => (outcome.status === 'rejected' ? [outcome.reason] : []));
  if (reasons.length > 0) throw reasons.length === 1 ? reasons[0] : new AggregateError(reasons, message);
}
