import type { Signaller } from '../engine/signaller.ts';
import type {
  InsertOptions,
  PurgeStep,
  QueueCounts,
  QueueOptions,
  ScanOptions,
  ScanPage,
  SettleItem,
  SettleResult,
  Storage,
  StorageCapabilities,
  TakeOptions,
  TakeResult,
  TimeLeft,
  Usage,
} from '../engine/storage.ts';
import type {
  Delivery,
  DeliveryState,
  ElementContent,
  ElementId,
  GroupName,
  NewElement,
} from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { QueueKey } from '../model/names.ts';
import { ownString } from '../util/own-bytes.ts';
import { contextIn, MAX_LINKS, type Span, type TraceContext, type Tracer } from './tracer.ts';

/** The operation type in the semantic conventions for messaging; null if they have none for the call. */
type OperationType = 'send' | 'receive' | 'settle' | null;

/**
 * A storage that records its calls as spans. A call within a request belongs to the request's trace. Inserts, takes and
 * settlements outside of requests, such as those of sessions and exchanges, start their own traces; other calls outside
 * of requests are not recorded. Each span is linked with the spans that inserted the elements of the call.
 */
export class TracedStorage implements Storage {
  readonly capabilities: StorageCapabilities;
  readonly undoesLostTakes: boolean;
  readonly ordersTransfers: boolean;
  readonly insertSignaller: Signaller | null;
  readonly #storage: Storage;
  readonly #engine: string;
  readonly #tracer: Tracer;

  /** @param engine its type, such as `sqlite` */
  constructor(storage: Storage, engine: string, tracer: Tracer) {
    this.#storage = storage;
    this.#engine = engine;
    this.#tracer = tracer;
    this.capabilities = storage.capabilities;
    this.undoesLostTakes = storage.undoesLostTakes;
    this.ordersTransfers = storage.ordersTransfers;
    this.insertSignaller = storage.insertSignaller;
  }

  insert(queue: QueueKey, elements: readonly NewElement[], options?: InsertOptions): Promise<ElementId[]> {
    const span = this.#begin('insert', 'send', queue, contextsOf(elements));
    const inserting = this.#storage.insert(queue, elements, options);
    return this.#observe(span, inserting, (ids) => noteMessages(span, ids));
  }

  /** Outside of a request, only a take that returned elements gets a span: wait queues take often. */
  take(queue: QueueKey, options: TakeOptions): Promise<TakeResult> {
    const { current } = this.#tracer;
    const startedAt = this.#tracer.now();
    const taking = this.#storage.take(queue, options);
    const end = ({ deliveries }: Pick<TakeResult, 'deliveries'>, error: unknown): void => {
      if (current === null && deliveries.length === 0) return;
      const span = this.#begin('take', 'receive', queue, contextsOf(deliveries), { current, startedAt });
      if (!span.isRecorded) return;
      if (options.group !== '') span.set('messaging.consumer.group.name', ownString(options.group));
      noteMessages(
        span,
        deliveries.map(({ id }) => id),
      );
      this.#end(span, error);
    };
    taking.then(
      (result) => end(result, null),
      (error: unknown) => end({ deliveries: [] }, error),
    );
    return taking;
  }

  settle(items: readonly SettleItem[], time?: TimeLeft): Promise<SettleResult[]> {
    const inserted = items.flatMap(({ action }) => (action.kind === 'finish' ? (action.inserts ?? []) : []));
    const contexts = contextsOf(inserted.map(({ element }) => element));
    const span = this.#begin('settle', 'settle', items[0]?.queue ?? null, contexts);
    noteMessages(
      span,
      items.map(({ id }) => id),
    );
    return this.#observe(span, this.#storage.settle(items, time));
  }

  declare(queues: readonly QueueKey[], options?: QueueOptions | null): Promise<void> {
    return this.#within('declare', queues[0] ?? null, () => this.#storage.declare(queues, options));
  }

  queues(ns: string): Promise<string[]> {
    return this.#within('queues', null, () => this.#storage.queues(ns));
  }

  undoTake(queue: QueueKey, deliveries: readonly Delivery[]): Promise<void> {
    return this.#within('undo take', queue, () => this.#storage.undoTake(queue, deliveries));
  }

  scan(queue: QueueKey, options: ScanOptions): Promise<ScanPage> {
    return this.#within('scan', queue, () => this.#storage.scan(queue, options));
  }

  purge(queue: QueueKey, states?: readonly DeliveryState[]): Promise<PurgeStep> {
    return this.#within('purge', queue, () => this.#storage.purge(queue, states));
  }

  drop(queue: QueueKey): Promise<boolean> {
    return this.#within('drop', queue, () => this.#storage.drop(queue));
  }

  counts(queue: QueueKey, group?: GroupName): Promise<QueueCounts> {
    return this.#within('count', queue, () => this.#storage.counts(queue, group));
  }

  usage(ns: string, needsBytes?: boolean): Promise<Usage> {
    return this.#within('usage', null, () => this.#storage.usage(ns, needsBytes));
  }

  sweep(): Promise<number | null> {
    return this.#storage.sweep();
  }

  takeAffected(): QueueKey[] {
    return this.#storage.takeAffected();
  }

  now(queue?: QueueKey): number {
    return this.#storage.now(queue);
  }

  get aheadMs(): number {
    return this.#storage.aheadMs;
  }

  /** Makes a call that is recorded only within a request. */
  #within<R>(name: string, queue: QueueKey | null, call: () => Promise<R>): Promise<R> {
    if (this.#tracer.current === null) return call();
    const span = this.#begin(name, null, queue, []);
    return this.#observe(span, call());
  }

  #begin(
    name: string,
    type: OperationType,
    queue: QueueKey | null,
    contexts: readonly TraceContext[],
    { current, startedAt }: { current: Span | null; startedAt?: number } = { current: this.#tracer.current },
  ): Span {
    const destination = queue === null ? null : `${queue.ns}/${queue.name}`;
    // An insert of a session continues the trace of the client that sent the element. A take starts a trace that is
    // linked with the insert.
    const [singleContext = null] = type === 'send' && contexts.length === 1 ? contexts : [];
    const parent = current?.context ?? singleContext;
    const span = this.#tracer.begin({
      name: destination === null ? name : `${name} ${destination}`,
      kind: 'internal',
      parent,
      linked: contexts.filter((context) => context !== parent),
      ...(startedAt !== undefined && { startedAt }),
    });
    if (!span.isRecorded) return span;
    span.set('quayside.engine', this.#engine);
    span.set('messaging.system.name', 'quayside');
    span.set('messaging.operation.name', name);
    if (type !== null) span.set('messaging.operation.type', type);
    if (destination !== null) span.set('messaging.destination.name', destination);
    return span;
  }

  /** Ends the span when the call ends. Returns the call's own promise, so that tracing does not delay the caller. */
  #observe<R>(span: Span, call: Promise<R>, note?: (result: R) => void): Promise<R> {
    if (!span.isRecorded) return call;
    call.then(
      (result) => {
        note?.(result);
        this.#end(span, null);
      },
      (error: unknown) => this.#end(span, error),
    );
    return call;
  }

  #end(span: Span, error: unknown): void {
    if (error !== null) span.fail(error instanceof QuaysideError ? error.code : 'internal');
    this.#tracer.end(span);
  }
}

/** The spans that inserted these elements, each once. */
function contextsOf(elements: readonly Pick<ElementContent, 'headers'>[]): TraceContext[] {
  const contexts = new Map<string, TraceContext>();
  for (const { headers } of elements) {
    if (contexts.size === MAX_LINKS) break;
    const context = headers.length === 0 ? null : contextIn(headers);
    if (context !== null) contexts.set(context.spanId, context);
  }
  return [...contexts.values()];
}

function noteMessages(span: Span, ids: readonly ElementId[]): void {
  if (!span.isRecorded) return;
  const [id] = ids;
  // The id of a settlement may be a slice of the request target, which the span must not retain.
  if (ids.length === 1 && id !== undefined) span.set('messaging.message.id', ownString(id));
  else span.set('messaging.batch.message_count', ids.length);
}
