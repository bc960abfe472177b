import { useComputed, useSignal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import type { AlarmPicture, BrowsedElement } from '../../model/records.ts';
import { ApiError } from '../api.ts';
import { bytes, exact, named, relative, several } from '../format.ts';
import {
  downloadUrl,
  havingHeader,
  listedElement,
  readElement,
  type WholeElement,
} from '../remote/elements.ts';
import { groupsWith } from '../remote/groups.ts';
import { alarms, clock, keyOf, type QueueNamed, queues, version } from '../remote/live.ts';
import type { BulkAction } from '../remote/operations.ts';
import { queueConsumers } from '../remote/queues.ts';
import { useResource } from '../remote/resource.ts';
import { firstIdOf } from '../remote/watched.ts';
import { elementHref, go, href, queueHref } from '../route.ts';
import { may, session, targetNamespaces } from '../session.ts';
import { BodyView, decode } from '../ui/body-view.tsx';
import { Crumbs } from '../ui/crumbs.tsx';
import { Icon } from '../ui/icon.tsx';
import { hasUniformLineEnds, InsertDialog } from '../ui/insert-dialog.tsx';
import { Menu } from '../ui/menu.tsx';
import { OperationDialog } from '../ui/operation-dialog.tsx';
import { Failure, Loading } from '../ui/states.tsx';
import { StateBadge } from './element-list.tsx';
import { ElementTimeline } from './element-timeline.tsx';

/**
 * The data of an element. Only the list has its holder and the reason of its last failure; only the element itself has
 * the whole body.
 */
interface KnownElement {
  readonly whole: WholeElement | null;
  readonly listed: BrowsedElement | null;
  readonly waiting: number | null;
}

async function readKnown(
  of: QueueNamed,
  id: string,
  group: string | null,
  signal: AbortSignal,
): Promise<KnownElement> {
  const hidesBodies = session.peek()?.maskedBodies.includes(of.ns) === true;
  const [whole, listed, waiting] = await Promise.all([
    hidesBodies ? null : readElement(of, id, group, signal),
    listedElement(of, id, group, signal).catch((error: unknown) => {
      // A list of Redis does not find elements by id.
      if (hidesBodies) throw error;
      return null;
    }),
    may('manage', of.ns) ? queueConsumers(of, signal).catch(() => null) : null,
  ]);
  // The same error as for users who may see bodies.
  if (whole === null && listed === null)
    throw new ApiError(404, 'element-not-found', `Queue ${named(of.queue)} has no element ${named(id)}.`);
  return { whole, listed, waiting: waiting?.length ?? null };
}

/** The delivery of an element to a group. */
interface OfDelivery {
  readonly of: QueueNamed;
  readonly id: string;
  /** On a stream; null: the first one. */
  readonly group: string | null;
}

export function ElementPageOf({ of, id, group }: OfDelivery) {
  const endsAt = useSignal<number | null>(null);
  const isOver = useComputed(() => endsAt.value !== null && endsAt.value <= clock.value);
  const known = useResource(
    `${keyOf(of)} ${id} ${group}`,
    (signal) => readKnown(of, id, group, signal),
    isOver.value ? REREAD_MS : 0,
  );
  useEffect(() => {
    endsAt.value = known.error === null ? endOfState(known.value) : null;
  }, [known.value, known.error]);
  const action = useSignal<BulkAction | null>(null);
  const isCloning = useSignal(false);
  const { ns, queue } = of;
  const where = { ids: [id], ...(group !== null && { group }) };
  const element = known.value;
  const state = element?.whole?.state ?? element?.listed?.state ?? null;
  const headers = element?.whole?.headers ?? Object.entries(element?.listed?.headers ?? {});
  const text = element?.whole == null ? null : wholeText(element.whole);
  const leftQueue = headers.find(([name]) => name === 'x-dl-from-queue')?.[1];
  const isDeadLetter = leftQueue !== undefined;
  return (
    <>
      <div>
        <Crumbs of={of} />
        <div class="page-head">
          <h1 class="grow mono element-id">
            {id} {state !== null && <StateBadge state={state} />}
          </h1>
          {element !== null && (
            <div class="actions">
              <button type="button" onClick={known.reload}>
                <Icon name="refresh" /> Reload
              </button>
              {isDeadLetter && may('manage', ns) && may('write', ns) && state !== 'reserved' && (
                <button type="button" class="primary" onClick={() => (action.value = 'redrive')}>
                  <Icon name="redrive" /> Redrive …
                </button>
              )}
              {may('write', ns) && text !== null && (
                <button type="button" onClick={() => (isCloning.value = true)}>
                  <Icon name="copy" /> Clone and edit …
                </button>
              )}
              {may('manage', ns) && (
                <Menu title="More actions" label={<Icon name="more" />} className="square">
                  {actionsOf(ns, state).map(([name, text]) => (
                    <button
                      key={name}
                      type="button"
                      class={name === 'delete' ? 'danger' : ''}
                      onClick={() => (action.value = name)}
                    >
                      {text}
                    </button>
                  ))}
                </Menu>
              )}
            </div>
          )}
        </div>
      </div>
      {known.error !== null && <Failure error={known.error} retry={known.reload} />}
      {known.error instanceof ApiError && known.error.code === 'element-not-found' && (
        <OtherGroups of={of} id={id} group={group} />
      )}
      {element === null && known.isLoading && <Loading what="Loading the element" />}
      {element !== null && (
        <div class="element">
          <div class="stack">
            <WhyNotDelivered of={of} element={element} />
            <section class="card">
              <header>
                <h2 class="grow">Body</h2>
                <span class="muted">
                  {element.whole?.contentType ?? element.listed?.contentType ?? 'no content type'} ·{' '}
                  {bytes(element.listed?.bytes ?? element.whole?.body.length ?? 0)}
                </span>
                {element.whole !== null && (
                  <a class="button quiet" href={downloadUrl(of, id, group)} download={`${queue}-${id}`}>
                    <Icon name="download" /> Download
                  </a>
                )}
              </header>
              <div class="body">
                {element.whole === null ? (
                  <p class="muted">Bodies are hidden from you in {ns}.</p>
                ) : (
                  <BodyView element={element.whole} />
                )}
              </div>
            </section>
          </div>
          <div class="stack">
            <ElementTimeline ns={ns} whole={element.whole} listed={element.listed} headers={headers} />
            <HeaderTable of={of} group={group} headers={headers} />
          </div>
        </div>
      )}
      {action.value !== null && (
        <OperationDialog
          action={action.value}
          source={of}
          where={where}
          onClose={(outcome) => {
            const done = action.value;
            action.value = null;
            if (outcome === 'changes' && done === 'redrive' && isDeadLetter)
              go(href(['q', ns, leftQueue, 'watch', firstIdOf(id, headers)], { dead: queue, left: id }));
            else if (outcome === 'changes' && (done === 'delete' || done === 'move' || done === 'redrive'))
              go(queueHref(ns, queue));
            else if (outcome !== 'none') known.reload();
          }}
        />
      )}
      {isCloning.value && element?.whole != null && text !== null && (
        <InsertDialog
          into={of}
          draft={{
            text,
            contentType: element.whole.contentType ?? '',
            headers: headers.filter(([name]) => !OF_SERVICE.test(name)),
            // Other groups have the original.
            groups: group ?? '',
          }}
          onClose={() => (isCloning.value = false)}
        />
      )}
    </>
  );
}

/** How often an element is read again after its state was due to end. */
const REREAD_MS = 2_000;

/** When the state ends without a call, by maturity or lease expiry, ms since 1970; null if it does not. */
function endOfState(element: KnownElement | null): number | null {
  const { whole = null, listed = null } = element ?? {};
  const state = whole?.state ?? listed?.state;
  const at =
    state === 'scheduled'
      ? (whole?.mature ?? listed?.mature)
      : state === 'reserved'
        ? (whole?.leaseUntil ?? listed?.holder?.until)
        : null;
  return at == null ? null : Date.parse(at);
}

/** Links to the other groups of a stream that still have the element. */
function OtherGroups({ of, id, group }: OfDelivery) {
  const waiting = useResource(`${keyOf(of)} ${id}`, (signal) => groupsWith(of, id, signal));
  if (waiting.value === null || waiting.value.groups.length === 0) return null;
  const { groups, areAll } = waiting.value;
  return (
    <section class="card why-card" aria-label="Groups that it waits for">
      <Icon name="ok" />
      <div>
        <h2>{group === null ? 'The first group' : `Group ${group}`} has finished it, or never had it</h2>
        <p>
          It waits for{' '}
          {groups.map((one, i) => (
            <span key={one}>
              {i > 0 && ', '}
              <a href={elementHref(of, id, one)}>{one}</a>
            </span>
          ))}
          {!areAll && ', and perhaps for groups that were not searched'}.
        </p>
      </div>
    </section>
  );
}

/** Headers written by the server, which a clone must not have. */
const OF_SERVICE = /^x-(dl-|ks-|hop-count$|copy-count$|exchange-)/;

/** The body as editable text; null if it is not text, was read only in part, or would be changed by a form. */
function wholeText({ body, isCut, isUnreadable }: WholeElement): string | null {
  const text = isCut || isUnreadable ? null : decode(body);
  if (text === null || new TextEncoder().encode(text).length !== body.length) return null;
  return hasUniformLineEnds(text) ? text : null;
}

function actionsOf(ns: string, state: string | null): readonly (readonly [BulkAction, string])[] {
  if (state === 'reserved') return [['release', 'Release …']];
  return [
    ['delay', state === 'scheduled' ? 'Make ready, or delay …' : 'Delay …'],
    ...(targetNamespaces(ns).length > 0
      ? ([
          ['move', 'Move …'],
          ['copy', 'Copy …'],
        ] as const)
      : []),
    ['delete', 'Delete …'],
  ];
}

function affectsNamespace({ alarm, namespaces = [] }: AlarmPicture, ns: string): boolean {
  return alarm === 'engine-unavailable' && namespaces.includes(ns);
}

/** Explains why an element is not delivered now, and what would change that. */
function WhyNotDelivered({
  of,
  element: { whole, listed, waiting },
}: {
  readonly of: QueueNamed;
  readonly element: KnownElement;
}) {
  version.value;
  const isPaused = queues.get(keyOf(of))?.paused === true;
  const state = whole?.state ?? listed?.state;
  const mature = whole?.mature ?? listed?.mature ?? null;
  const holder = listed?.holder ?? null;
  const reasons: string[] = [];
  if (state === 'scheduled' && mature !== null) {
    reasons.push(
      `It ${Date.parse(mature) > clock.value ? 'matures' : 'matured'} ${relative(Date.parse(mature), clock.value)}, at ${exact(Date.parse(mature))}.`,
    );
  }
  if (state === 'reserved') {
    const until = holder?.until ?? whole?.leaseUntil ?? null;
    const by =
      holder === null
        ? 'a consumer'
        : `${holder.user ?? 'an exchange'}${holder.tid === null ? '' : `, tid ${holder.tid}`}`;
    const since = holder === null ? '' : ` since ${exact(Date.parse(holder.since))}`;
    reasons.push(`It is reserved by ${by}${since}.`);
    if (until !== null)
      reasons.push(
        Date.parse(until) > clock.value
          ? `The lease ends ${relative(Date.parse(until), clock.value)}; then a try is counted, and it is ready again.`
          : `The lease ended ${relative(Date.parse(until), clock.value)}: a try is counted, and it is ready again soon.`,
      );
  }
  const expiresAt = listed?.expiresAt ?? null;
  if (expiresAt !== null && Date.parse(expiresAt) <= clock.value)
    reasons.push(
      `It expired ${relative(Date.parse(expiresAt), clock.value)}: it is no longer delivered, and the server will dead-letter or remove it.`,
    );
  if ([...alarms.values()].some((alarm) => affectsNamespace(alarm, of.ns)))
    reasons.push(`The engine of ${of.ns} is unavailable: nothing is delivered until it is available again.`);
  if (isPaused) reasons.push('The queue is paused: consumers receive nothing until it is resumed.');
  if (reasons.length === 0 && waiting === 0)
    reasons.push(
      'It is ready, and no consumer is waiting. The next get or reserve takes it, in queue order.',
    );
  if (reasons.length === 0 && waiting !== null)
    reasons.push(
      `It is ready, and ${several(waiting, 'consumer waits', 'consumers wait')}: it is delivered in queue order.`,
    );
  if (reasons.length === 0) reasons.push('It is ready. The next get or reserve takes it, in queue order.');
  return (
    <section class="card why-card" aria-label="Why it is not delivered now">
      <Icon
        name={state === 'reserved' ? 'lock' : state === 'scheduled' ? 'clock' : isPaused ? 'paused' : 'ok'}
      />
      <div>
        <h2>Why is it not delivered now?</h2>
        {reasons.map((reason) => (
          <p key={reason}>{reason}</p>
        ))}
      </div>
    </section>
  );
}

function HeaderTable({
  of: { ns, queue },
  group,
  headers,
}: {
  readonly of: QueueNamed;
  readonly group: string | null;
  readonly headers: readonly (readonly [string, string])[];
}) {
  return (
    <section class="card">
      <header>
        <h2 class="grow">Headers</h2>
        <span class="muted">{headers.length}</span>
      </header>
      {headers.length === 0 ? (
        <p class="body muted">None.</p>
      ) : (
        <dl class="pairs body mono">
          {headers.map(([name, value]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd>
                <a
                  href={queueHref(ns, queue, { group, search: havingHeader(name, value) })}
                  title="Find the elements of the queue that have this header"
                  dir="auto"
                >
                  {value}
                </a>
              </dd>
            </div>
          ))}
        </dl>
      )}
    </section>
  );
}
