import { useComputed, useSignal } from '@preact/signals';
import { useEffect, useRef } from 'preact/hooks';
import type { DeliveryState } from '../../model/element.ts';
import type { Action, OperationDeclaration, OperationRecord, OperationWhere } from '../../model/records.ts';
import { call, get, isTemporary, mayHaveChanged, path, type QueueNamed } from '../api.ts';
import { bytes, count, named, several, startOfDay } from '../format.ts';
import { isComplete, keyOf, queues, version } from '../remote/live.ts';
import { href } from '../route.ts';
import { may, targetNamespaces } from '../session.ts';
import { after, now } from '../timers.ts';
import { Button } from './button.tsx';
import { Dialog, DialogFoot } from './dialog.tsx';
import { Field, QueueFields, Select, useWork } from './form.tsx';
import type { IconName } from './icon.tsx';
import { PlainTable } from './plain-table.tsx';
import { Badge, Failure, Loading, Meter } from './states.tsx';
import { When } from './when.tsx';

interface ElementAction {
  readonly name: string;
  readonly icon: IconName;
  /** What it does to the elements, in a sentence. */
  readonly effect: string;
  /** What it has done to them, as a word. */
  readonly done: string;
}

/** What users can do to many elements of a queue. */
export const BULK_ACTIONS = {
  redrive: {
    name: 'Redrive',
    icon: 'redrive',
    effect: 'Each returns to the queue that it came from, with tries 0.',
    done: 'redriven',
  },
  move: {
    name: 'Move',
    icon: 'move',
    effect: 'Each goes to the other queue, with its content, tries and maturity.',
    done: 'moved',
  },
  copy: {
    name: 'Copy',
    icon: 'copy',
    effect: 'A copy of each goes to the other queue; the originals stay.',
    done: 'copied',
  },
  delay: {
    name: 'Delay',
    icon: 'clock',
    effect: 'Each becomes ready after the delay; 0 makes them ready now.',
    done: 'delayed',
  },
  release: {
    name: 'Release',
    icon: 'exit',
    effect: 'Their leases end now, and no try is counted. Commits of their holders will be rejected.',
    done: 'released',
  },
  delete: { name: 'Delete', icon: 'trash', effect: 'They are removed for good.', done: 'deleted' },
} as const satisfies Readonly<Record<string, ElementAction>>;

export type BulkAction = keyof typeof BULK_ACTIONS;

/** What an operation has done to elements, for sentences. Programs start some with other actions. */
export function doneBy(action: Action): string {
  const known: Readonly<Record<string, ElementAction>> = BULK_ACTIONS;
  return known[action]?.done ?? 'changed';
}

/** The actions that elements in a state allow, except redrive; null: in any state. */
export function actionsOn(ns: string, state: DeliveryState | null): readonly BulkAction[] {
  if (state === 'reserved') return ['release'];
  return [
    ...(targetNamespaces(ns).length > 0 ? (['move', 'copy'] as const) : []),
    'delay',
    ...(state === null ? ['release' as const] : []),
    'delete',
  ];
}

type BulkRequest = OperationDeclaration & {
  readonly action: BulkAction;
  readonly source: QueueNamed;
};

const POLL_MS = 250;
const RETRY_MS = 2_000;

/** Called with what was read of an operation, or with why it cannot be read for the moment. */
type OnRead = (operation: OperationRecord | null, error: unknown) => void;

/** Starts an operation. Takes no signal: an abort could not tell whether the operation has started. */
function startOperation(request: BulkRequest): Promise<OperationRecord> {
  return get<OperationRecord>('operations', {
    method: 'POST',
    // `source` may have more members, which the server would reject.
    json: { ...request, source: { ns: request.source.ns, queue: request.source.queue } },
  });
}

export async function cancelOperation(id: string): Promise<void> {
  await call(path('operations', id), { method: 'DELETE' });
}

/**
 * Counts what an operation would change. If `signal` is aborted, the count is cancelled on the server, too: otherwise
 * it would read the whole queue for nothing, and count toward the limit of operations.
 */
async function countMatching(request: BulkRequest, onRead: OnRead, signal: AbortSignal): Promise<void> {
  const { id } = await startOperation({ ...request, dryRun: true });
  const cancel = (): void => {
    cancelOperation(id).catch(() => {});
  };
  if (signal.aborted) return cancel();
  signal.addEventListener('abort', cancel);
  try {
    await watchOperation(id, onRead, signal);
  } finally {
    signal.removeEventListener('abort', cancel);
  }
}

/** Polls an operation until it has ended. It runs without this page, so errors of an outage are only reported. */
async function watchOperation(id: string, onRead: OnRead, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    const operation = await get<OperationRecord>(path('operations', id), { signal }).catch(
      (error: unknown) => {
        if (!isTemporary(error)) throw error;
        onRead(null, error);
        return null;
      },
    );
    if (operation !== null) onRead(operation, null);
    if (operation !== null && operation.state !== 'running') return;
    await new Promise<void>((resolve) => after(operation === null ? RETRY_MS : POLL_MS, resolve));
  }
}

const SAMPLES = 5;
const HOUR_MS = 3_600_000;

/** Time ranges of dead letters. */
const SINCE = [
  ['any', 'At any time'],
  ['today', 'Today'],
  ['hour', 'In the last hour'],
] as const;
type Since = (typeof SINCE)[number][0];

/** Restricts `where` to dead letters of a time range. @param where with a selector that is a function, or none */
function deadSince(where: OperationWhere, since: Since): OperationWhere {
  if (since === 'any') return where;
  const from = new Date(since === 'today' ? startOfDay(now()) : now() - HOUR_MS).toISOString();
  const isInTime = `env.msg.hdrs["x-dl-at"] >= "${from}"`;
  const { selector } = where;
  return {
    ...where,
    selector: `env => ${selector === undefined ? '' : `(${selector})(env) && `}${isInTime}`,
  };
}

/**
 * The state of an action when its dialog is closed. `none`: no operation was started. `perhaps`: an operation was
 * started, or may have been, but is not known to have changed anything. `changes`: it has changed elements, or is still
 * running.
 */
type OperationOutcome = 'none' | 'perhaps' | 'changes';

/**
 * An action on many elements in three steps: a dry run shows what it would change, a confirmation names the queue and
 * the number, and then the progress is shown. The operation runs on the server, so closing the dialog does not end it.
 */
export function OperationDialog({
  action,
  source,
  where,
  hasTimes = false,
  onClose,
}: {
  readonly action: BulkAction;
  readonly source: QueueNamed;
  readonly where: OperationWhere;
  /** Whether to offer time ranges of dead letters. */
  readonly hasTimes?: boolean;
  readonly onClose: (outcome: OperationOutcome) => void;
}) {
  const preview = useSignal<OperationRecord | null>(null);
  const running = useSignal<OperationRecord | null>(null);
  const error = useSignal<unknown>(null);
  const target = useSignal<QueueNamed>({ ns: targetNamespaces(source.ns)[0] ?? '', queue: '' });
  const delay = useSignal('0');
  const since = useSignal<Since>('any');
  const counting = useRef(new AbortController());
  const watching = useRef(new AbortController());
  const isStarting = useSignal(false);
  /** Whether an operation may be running that this dialog does not show. */
  const isUnknown = useSignal(false);
  const needsTarget = action === 'move' || action === 'copy';
  // Computed once for each choice, so that a time range begins when it was counted.
  const request = useComputed(
    (): BulkRequest => ({
      action,
      source,
      where: deadSince(where, since.value),
      ...(needsTarget && { to: target.value }),
      ...(action === 'delay' && { delay: Math.round(Number(delay.value) * 1000) }),
    }),
  );
  const showIn =
    (shown: { value: OperationRecord | null }): OnRead =>
    (operation, reason) => {
      if (operation !== null) shown.value = operation;
      error.value = reason;
    };
  const countAgain = async (): Promise<void> => {
    counting.current.abort();
    counting.current = new AbortController();
    const { signal } = counting.current;
    error.value = null;
    preview.value = null;
    // Count with a placeholder target, which does not affect what matches; the user may write in its namespace.
    const to = { ns: target.peek().ns, queue: source.queue === 'preview' ? 'preview-2' : 'preview' };
    try {
      const counted = { ...request.peek(), ...(needsTarget && { to }) };
      await countMatching(counted, showIn(preview), signal);
    } catch (reason) {
      if (!signal.aborted) error.value = reason;
    }
  };
  const start = async (): Promise<void> => {
    const { signal } = watching.current;
    isStarting.value = true;
    error.value = null;
    try {
      // Limit the operation to the confirmed number: more elements may have arrived since the count.
      const counted = preview.peek();
      const limit = counted === null ? {} : { limit: counted.matched };
      running.value = await startOperation({ ...request.peek(), ...limit });
      isStarting.value = false;
      await watchOperation(running.value.id, showIn(running), signal);
    } catch (reason) {
      isStarting.value = false;
      if (running.peek() === null && mayHaveChanged(reason)) {
        // Require a new count before the action can be confirmed again.
        preview.value = null;
        isUnknown.value = true;
        error.value =
          'The response was lost: the operation may be running. Check the list of operations before you start it again.';
      } else if (!signal.aborted) error.value = reason;
    }
  };
  const close = (): void => {
    // Not before the server has responded: the operation may have started.
    if (isStarting.peek()) return;
    const operation = running.peek();
    if (operation === null) onClose(isUnknown.peek() ? 'perhaps' : 'none');
    else onClose(operation.changed > 0 || operation.state === 'running' ? 'changes' : 'perhaps');
  };
  useEffect(() => {
    void countAgain();
    return () => {
      counting.current.abort();
      watching.current.abort();
    };
  }, []);
  const goesTo = needsTarget && target.value.queue !== '' ? ` to ${named(target.value.queue)}` : '';
  const title = `${BULK_ACTIONS[action].name} elements of ${named(source.queue)}`;
  const isReady = !needsTarget || target.value.queue.trim() !== '';
  const counted = preview.value;
  return (
    <Dialog title={title} onClose={close} wide>
      {running.value !== null ? (
        <Progress operation={running.value} error={error.value} onClose={close} />
      ) : (
        <form
          onSubmit={(event) => {
            event.preventDefault();
            void start();
          }}
        >
          <p>{BULK_ACTIONS[action].effect}</p>
          {needsTarget && (
            <Target
              namespaces={targetNamespaces(source.ns)}
              target={target.value}
              onChange={(next) => (target.value = next)}
            />
          )}
          {hasTimes && (
            <Field label="Became dead letters">
              <Select
                value={since.value}
                options={SINCE}
                isDisabled={isStarting.value}
                onChange={(chosen) => {
                  since.value = chosen;
                  void countAgain();
                }}
              />
            </Field>
          )}
          {action === 'delay' && (
            <Field label="Delay in seconds">
              <input
                type="number"
                min={0}
                step="any"
                required
                value={delay.value}
                onInput={(event) => (delay.value = event.currentTarget.value)}
              />
            </Field>
          )}
          <Failure error={error.value} retry={() => void countAgain()} />
          {(error.value === null || preview.value !== null) && <Preview operation={preview.value} />}
          <DialogFoot
            isDanger={action === 'delete'}
            isDisabled={!isReady || isStarting.value || counted?.state !== 'done' || counted.matched === 0}
            mayCancel={!isStarting.value}
            onCancel={close}
          >
            {BULK_ACTIONS[action].name} {counted === null ? 'elements' : several(counted.matched, 'element')}{' '}
            of {named(source.queue)}
            {goesTo}
          </DialogFoot>
        </form>
      )}
    </Dialog>
  );
}

function Preview({ operation }: { readonly operation: OperationRecord | null }) {
  if (operation === null) return <Loading what="Counting" />;
  const { state, matched, seen, samples, error } = operation;
  if (state === 'failed') return <Failure error={error ?? 'The count failed.'} />;
  return (
    <section aria-label="What would be changed" aria-live="polite">
      <p>
        <b>{several(matched, 'element')}</b> {matched === 1 ? 'matches' : 'match'}
        {state === 'running' && <span class="muted"> so far; {count(seen)} searched …</span>}
        {samples.length > 0 && <span class="muted">; the first of them:</span>}
      </p>
      {samples.length > 0 && (
        <PlainTable
          label="The first elements that match"
          rows={samples.slice(0, SAMPLES)}
          keyOf={({ id }) => id}
          columns={[
            { title: 'Id', className: 'mono', cell: ({ id }) => id },
            { title: 'State', cell: ({ state: of }) => of },
            { title: 'Inserted', cell: ({ insertedAt }) => <When at={insertedAt} /> },
            { title: 'Size', isNumber: true, cell: ({ bytes: size }) => bytes(size) },
            {
              title: 'Last failure',
              className: 'reason',
              cell: ({ reason, tries }) => (
                <span title={reason ?? undefined}>
                  {reason ?? (tries === 0 ? '–' : several(tries, 'failed try', 'failed tries'))}
                </span>
              ),
            },
          ]}
        />
      )}
    </section>
  );
}

function Target({
  namespaces,
  target,
  onChange,
}: {
  readonly namespaces: readonly string[];
  readonly target: QueueNamed;
  readonly onChange: (target: QueueNamed) => void;
}) {
  version.value;
  const names = [...queues.values()]
    .filter(({ ns, queue }) => ns === target.ns && queue.includes(target.queue))
    .slice(0, 200)
    .map(({ queue }) => queue);
  const isNew =
    isComplete.value && may('read', target.ns) && target.queue !== '' && !queues.has(keyOf(target));
  return (
    <div class="row">
      <QueueFields label="To" of={target} namespaces={namespaces} suggestions={names} onChange={onChange} />
      {isNew && (
        <p class="muted" role="status">
          This queue does not exist yet. It will be created.
        </p>
      )}
    </div>
  );
}

const STATE_LEVELS = { running: 'accent', done: 'good', cancelled: 'warn', failed: 'bad' } as const;

export function OperationState({ state }: { readonly state: OperationRecord['state'] }) {
  return <Badge level={STATE_LEVELS[state]}>{state}</Badge>;
}

/** The progress of an operation, from 0 to 1. */
export function progressOf({
  action,
  state,
  seen,
  changed,
  estimate,
}: Pick<OperationRecord, 'action' | 'state' | 'seen' | 'changed' | 'estimate'>): number {
  if (state === 'done') return 1;
  // A migration waits until consumers have taken the elements of the old engine.
  const past = action === 'migrate' ? changed : seen;
  return estimate === 0 ? 0 : Math.min(1, past / estimate);
}

function Progress({
  operation,
  error: trouble,
  onClose,
}: {
  readonly operation: OperationRecord;
  /** Why the operation could not be read. */
  readonly error: unknown;
  readonly onClose: () => void;
}) {
  const { error: cancelError, run } = useWork();
  const { action, source, to, state, matched, changed, failed, error } = operation;
  return (
    <div class="body" aria-live="polite">
      <p class="row">
        <OperationState state={state} />
        <b>
          {several(changed, 'element')} of {named(source.queue ?? source.ns)} {doneBy(action)}
          {to?.queue !== undefined && ` to ${named(to.queue)} of ${to.ns}`}
        </b>
        {matched > changed && <span class="muted">of {count(matched)} that matched</span>}
      </p>
      <Meter part={progressOf(operation)} />
      {failed > 0 && <p>{several(failed, 'element')} could not be changed and stayed where they were.</p>}
      <Failure error={error} />
      <Failure error={cancelError ?? trouble} />
      <div class="foot">
        <a class="button quiet" href={href(['operations'])}>
          All operations
        </a>
        {state === 'running' && (
          <Button class="danger" onClick={() => void run(() => cancelOperation(operation.id))}>
            Cancel the operation
          </Button>
        )}
        <Button class="primary" onClick={onClose}>
          Close
        </Button>
      </div>
    </div>
  );
}
