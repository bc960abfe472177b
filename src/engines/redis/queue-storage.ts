import type { Signaller } from '../../engine/signaller.ts';
import type { Usage } from '../../engine/storage.ts';
import type { QueueKey } from '../../model/names.ts';
import type { BatcherContext, Batchers } from './batcher.ts';
import type { Sweeper } from './sweeper.ts';

/** What the storages of all variants have in common. */
export abstract class QueueStorage {
  readonly aheadMs = 0;
  readonly insertSignaller: Signaller;
  protected readonly batchers: Batchers;
  protected readonly context: BatcherContext;
  protected readonly sweeper: Sweeper;

  constructor(batchers: Batchers, sweeper: Sweeper) {
    this.insertSignaller = batchers.context.signaller;
    this.batchers = batchers;
    this.context = batchers.context;
    this.sweeper = sweeper;
  }

  now(queue?: QueueKey): number {
    return this.context.registry.now(queue);
  }

  queues(ns: string): Promise<string[]> {
    return this.context.registry.names(ns);
  }

  usage(ns: string, needsBytes = true): Promise<Usage> {
    return this.context.registry.usage(ns, needsBytes);
  }

  takeAffected(): QueueKey[] {
    return this.sweeper.affected.takeAll();
  }
}
