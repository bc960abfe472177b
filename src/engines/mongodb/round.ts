import type { Call, InsertCall, SettleCall, TakeCall } from './call.ts';

/** What one round carries, at most: the memory of one message, and the time of one transaction. */
const MOST_BYTES = 16 * 1024 * 1024;
const MOST_PARTS = 1000;

/** Calls that are carried out together: first what they settle and insert, then what they take. */
export class Round {
  readonly calls: Call[] = [];
  readonly queues = new Set<string>();
  readonly inserts: InsertCall[] = [];
  readonly takes: TakeCall[] = [];
  readonly settles: SettleCall[] = [];
  #bytes = 0;
  #parts = 0;

  /** Answers false where the call is of another kind, or there is no room for it. */
  add(call: Call): boolean {
    const { args } = call;
    if ('run' in args) return false;
    const parts = partsOf(call);
    const isTooMuch = this.#bytes + call.bytes > MOST_BYTES || this.#parts + parts > MOST_PARTS;
    if (isTooMuch && this.calls.length > 0) return false;
    this.#bytes += call.bytes;
    this.#parts += parts;
    this.calls.push(call);
    for (const queue of call.queues) this.queues.add(queue);
    if (args.kind === 'insert') this.inserts.push(call as InsertCall);
    else if (args.kind === 'take') this.takes.push(call as TakeCall);
    else this.settles.push(call as SettleCall);
    return true;
  }

  /** Whether something that was called for before may still decide about what this call names. */
  hasEarlierTake({ order, queues: [queue] }: SettleCall): boolean {
    return this.takes.some((take) => take.order < order && take.queues[0] === queue);
  }
}

function partsOf({ args }: Call): number {
  switch (args.kind) {
    case 'insert':
      return args.elements.length;
    case 'take':
      return args.count;
    case 'settle':
      return args.items.length;
    default:
      return 1;
  }
}
