import type { Service } from '../util/service.ts';

/** Services that were started one after the other, to be stopped the other way round. */
export class ServiceStack {
  readonly #services: Service[] = [];

  /** Starts a service; it will be stopped also where its start failed, since part of it may run. */
  async start(service: Service): Promise<void> {
    this.#services.push(service);
    await service.start();
  }

  /** As `start`, for services that do not depend on each other. Waits for all, also where one fails. */
  async startAll(services: readonly Service[]): Promise<void> {
    this.#services.push(...services);
    const outcomes = await Promise.allSettled(services.map((service) => service.start()));
    const faults = outcomes.filter((outcome) => outcome.status === 'rejected').map(({ reason }) => reason);
    if (faults.length > 0) throw joined(faults, 'Some parts could not be started.');
  }

  /** Stops all, the last one first. What fails does not keep the others from being stopped. */
  async stop(): Promise<void> {
    const faults: unknown[] = [];
    for (let service = this.#services.pop(); service !== undefined; service = this.#services.pop()) {
      try {
        await service.stop();
      } catch (fault) {
        faults.push(fault);
      }
    }
    if (faults.length > 0) throw joined(faults, 'Some parts could not be stopped.');
  }
}

function joined(faults: unknown[], message: string): unknown {
  return faults.length === 1 ? faults[0] : new AggregateError(faults, message);
}
