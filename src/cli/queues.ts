import { setTimeout as delay } from 'node:timers/promises';
import type { ElementState, Name } from '../client/index.ts';
import { pathOf } from '../client/quayside.ts';
import type {
  DeadLetterQueue,
  DeadLetters,
  NodeRecord,
  OperationRecord,
  QueueRecord,
} from '../model/records.ts';
import { quote } from '../util/quote.ts';
import { type CommandContext, CommandUsageError, onEndSignal, pick, textOf } from './context.ts';
import { placeOf } from './elements.ts';
import { EXIT_CODES } from './output.ts';

/** Interval between reads of an operation's progress. */
const PROGRESS_MS = 250;

/** Prints the status of a queue, or of the queues of a namespace; without a name, lists the namespaces. */
export async function status(context: CommandContext, name: string | undefined): Promise<number> {
  if (name?.includes('/')) {
    const record = await context.client.queue(name as Name).status();
    await context.print(record, () =>
      Object.entries(record)
        .map(([key, value]) => `${key.padEnd(14)} ${textOf(value)}`)
        .join('\n'),
    );
    return EXIT_CODES.done;
  }
  if (name === undefined) {
    const names = await context.json<string[]>('GET', '/q');
    await context.printRows(
      names.map((namespace) => ({ namespace })),
      'no namespaces',
    );
    return EXIT_CODES.done;
  }
  const queues = await context.json<Record<string, QueueRecord>>('GET', `/q/${encodeURIComponent(name)}`);
  const rows = Object.entries(queues).map(([queue, record]) => ({
    queue,
    ready: record.size,
    scheduled: record.schedSize,
    reserved: record.resvSize,
    paused: record.paused,
  }));
  await context.printRows(rows, 'no queues');
  return EXIT_CODES.done;
}

/** Prints the dead letters by queue. */
export async function dead(context: CommandContext, namespace: string | undefined): Promise<number> {
  const query = namespace === undefined ? '' : `?ns=${encodeURIComponent(namespace)}`;
  const { queues, complete, unavailable } = await context.json<DeadLetters>('GET', `/dead-letters${query}`);
  if (unavailable.length > 0) {
    context.warn(`Dead letters of ${unavailable.join(', ')} are not listed: the engine is unavailable.`);
  } else if (!complete) {
    context.warn('Not all dead-letter queues are listed, because there are too many. Name a namespace.');
  }
  const rowOf = ({ ns, queue, count, oldest, reasons: [first] }: DeadLetterQueue) => {
    return { queue: `${ns}/${queue}`, count, oldest, 'most frequent reason': first?.reason ?? null };
  };
  await context.printRecords(queues, rowOf, 'no dead-letter queues');
  return EXIT_CODES.done;
}

interface BulkFlags {
  readonly where?: string;
  readonly state?: ElementState;
  readonly group?: string;
  readonly limit?: number;
  readonly dryRun?: boolean;
  readonly background?: boolean;
}

/** Moves dead letters back to the queues that they left. */
export function redrive(context: CommandContext, source: string, flags: BulkFlags): Promise<number> {
  return bulk(context, 'redrive', source, null, flags);
}

/** Moves elements to another queue. */
export function move(context: CommandContext, source: string, to: string, flags: BulkFlags): Promise<number> {
  return bulk(context, 'move', source, to, flags);
}

/** Starts a bulk operation and, unless it runs in the background, waits for its end. */
async function bulk(
  context: CommandContext,
  action: 'move' | 'redrive',
  source: string,
  to: string | null,
  { where, state, group, limit, dryRun, background }: BulkFlags,
): Promise<number> {
  // Empty values must reach the server, which rejects them: without a condition, it would move everything.
  const conditions = Object.entries({ selector: where, state, group }).filter(
    ([, value]) => value !== undefined,
  );
  const body = {
    action,
    source: placeOf(source),
    ...(to !== null && { to: placeOf(to) }),
    ...(conditions.length > 0 && { where: Object.fromEntries(conditions) }),
    ...(limit !== undefined && { limit }),
    ...(dryRun && { dryRun }),
  };
  const started = await context.json<OperationRecord>('POST', '/operations', { body: JSON.stringify(body) });
  context.hasChanged = true;
  const record = background ? started : await waitForEnd(context, started);
  if (record === null) return EXIT_CODES.outcomeUnknown;
  await context.print(record, () => operationText(record));
  return record.state === 'failed' || record.failed > 0 ? EXIT_CODES.failed : EXIT_CODES.done;
}

/**
 * Shows the progress of an operation until it ends. Returns null if a signal ends the wait. In this case, and if the
 * progress cannot be read, prints that the operation continues on the server.
 */
async function waitForEnd(
  context: CommandContext,
  started: OperationRecord,
): Promise<OperationRecord | null> {
  const interrupted = new AbortController();
  const { signal } = interrupted;
  const stopListening = onEndSignal(() => interrupted.abort());
  let record = started;
  try {
    while (record.state === 'running' && !signal.aborted) {
      context.progress(`${record.changed} of about ${record.estimate} elements`);
      await delay(PROGRESS_MS, undefined, { signal }).catch(() => {});
      if (!signal.aborted) record = await operationOf(context, record.id, signal);
    }
    context.endProgress();
    if (record.state !== 'running') return record;
    warnStillRunning(context, record);
    return null;
  } catch (error) {
    context.endProgress();
    warnStillRunning(context, record);
    if (signal.aborted) return null;
    throw error;
  } finally {
    stopListening();
  }
}

function warnStillRunning(context: CommandContext, { id }: OperationRecord): void {
  const how = `see it with: quayside operations ${id} (--cancel ends it)`;
  context.warn(`operation ${id} continues on the server; ${how}`);
}

function operationText(record: OperationRecord): string {
  const { id, state, matched, changed, failed, error } = record;
  const counts = `${matched} matched, ${changed} changed, ${failed} failed`;
  return `${actionText(record)} ${id}: ${state}; ${counts}${error === null ? '' : `; ${error}`}`;
}

function actionText({ action, dryRun }: OperationRecord): string {
  return dryRun ? `${action} (dry run)` : action;
}

const operationOf = (context: CommandContext, id: string, signal?: AbortSignal): Promise<OperationRecord> =>
  context.json('GET', `/operations/${encodeURIComponent(id)}`, { signal });

/** Lists all operations, or shows or cancels one. */
export async function operations(
  context: CommandContext,
  id: string | undefined,
  { cancel }: { cancel?: boolean },
): Promise<number> {
  if (id === undefined) {
    if (cancel) throw new CommandUsageError('--cancel needs the id of an operation.');
    const all = await context.json<OperationRecord[]>('GET', '/operations');
    await context.printRecords(
      all,
      (one) => ({
        ...pick(one, 'id', 'action', 'state', 'matched', 'changed', 'failed', 'startedAt'),
        action: actionText(one),
      }),
      'no operations',
    );
    return EXIT_CODES.done;
  }
  if (cancel) {
    await context.call('DELETE', `/operations/${encodeURIComponent(id)}`, { isRepeatable: true });
    context.hasChanged = true;
  }
  const record = await operationOf(context, id);
  await context.print(record, () => operationText(record));
  return EXIT_CODES.done;
}

/** Values of `--state`, and which elements they mean. */
const STATES_OF_PURGE: ReadonlyMap<string, string> = new Map([
  ['ready', 'ready'],
  ['scheduled', 'scheduled'],
  ['reserved', 'reserved'],
  ['all', 'ready, scheduled or reserved'],
]);

/** Removes the elements of a queue. */
export async function purge(
  context: CommandContext,
  name: Name,
  { state, yes }: { state?: string; yes?: boolean },
): Promise<number> {
  const states = state === undefined ? 'ready or scheduled' : STATES_OF_PURGE.get(state);
  if (states === undefined) {
    const allowed = [...STATES_OF_PURGE.keys()].join(', ');
    throw new CommandUsageError(`--state ${quote(state)} is not a state. Allowed: ${allowed}.`);
  }
  if (!yes) {
    const { ready, scheduled, reserved } = await context.client.queue(name).status();
    throw new CommandUsageError(
      `purge removes elements permanently; ${name} holds ${ready} ready, ${scheduled} scheduled and ${reserved} reserved. ` +
        `Repeat it with --yes, which removes those that are ${states}.`,
    );
  }
  const query = state === undefined ? '' : `?state=${encodeURIComponent(state)}`;
  // Removing millions of elements exceeds the time limit of other calls.
  const path = `${pathOf(name)}/elements${query}`;
  const removed = await context.slowJson<{ removed: number }>('DELETE', path);
  context.hasChanged = true;
  await context.print(removed, () => `${removed.removed} elements removed`);
  return EXIT_CODES.done;
}

/** Lists the nodes that share namespaces with the server. */
export async function nodes(context: CommandContext): Promise<number> {
  const all = await context.json<NodeRecord[]>('GET', '/nodes');
  await context.printRecords(
    all,
    (one) => pick(one, 'id', 'host', 'pid', 'version', 'startedAt', 'isSelf'),
    'no nodes',
  );
  return EXIT_CODES.done;
}
