import { useComputed, useSignal } from '@preact/signals';
import type { ComponentChildren } from 'preact';
import { useEffect } from 'preact/hooks';
import type { AlarmPicture, BrowsedElement, OptionsRecord, PendingConsumer } from '../../model/records.ts';
import { ApiError, get, type QueueNamed, queuePath } from '../api.ts';
import { bytes, duration, exact, named, relative, several } from '../format.ts';
import {
  downloadUrl,
  type ElementBody,
  groupsWith,
  havingHeader,
  holderText,
  listedElement,
  readBody,
} from '../remote/elements.ts';
import { alarms, keyOf, queues, version } from '../remote/live.ts';
import { useResource } from '../remote/resource.ts';
import { elementHref, go, href, queueHref } from '../route.ts';
import { may, session } from '../session.ts';
import { clock } from '../timers.ts';
import { BodyView, decode } from '../ui/body-view.tsx';
import { Button } from '../ui/button.tsx';
import { Card } from '../ui/card.tsx';
import { Icon } from '../ui/icon.tsx';
import { hasUniformLineEnds, InsertDialog } from '../ui/insert-dialog.tsx';
import { Menu } from '../ui/menu.tsx';
import { actionsOn, BULK_ACTIONS, type BulkAction, OperationDialog } from '../ui/operation-dialog.tsx';
import { Crumbs, QueueLink } from '../ui/queue-links.tsx';
import { Failure, Loading } from '../ui/states.tsx';
import { When } from '../ui/when.tsx';
import { StateBadge } from './element-list.tsx';
import { firstIdOf } from './watched-element.tsx';

type KnownElement = BrowsedElement & {
  /** Null: the user may not see it. */
  readonly body: ElementBody | null;
  /** The number of waiting consumers that may get it; null: unknown. */
  readonly waiting: number | null;
  /** The options that apply to a reserved element when its lease ends; null: unknown, or it is not reserved. */
  readonly options: OptionsRecord['effective'] | null;
};

async function readKnown(
  of: QueueNamed,
  id: string,
  group: string | null,
  signal: AbortSignal,
): Promise<KnownElement> {
  const hidesBodies = session.peek()?.maskedBodies.includes(of.ns) === true;
  const [element, body, consumers] = await Promise.all([
    listedElement(of, id, group, signal),
    hidesBodies ? null : readBody(of, id, group, signal),
    may('manage', of.ns)
      ? get<readonly PendingConsumer[]>(queuePath(of, 'consumers'), { signal }).catch(() => null)
      : null,
  ]);
  // The same error as for users who may see bodies.
  if (element === null)
    throw new ApiError(404, 'element-not-found', `Queue ${named(of.queue)} has no element ${named(id)}.`);
  const record =
    element.holder !== null && may('read', of.ns)
      ? await get<OptionsRecord>(queuePath(of, 'options'), { signal }).catch(() => null)
      : null;
  return { ...element, body, waiting: waitingIn(group, consumers), options: record?.effective ?? null };
}

/** Returns the number of consumers that wait in a group of a stream, or in a plain queue; null: unknown. */
function waitingIn(group: string | null, consumers: readonly PendingConsumer[] | null): number | null {
  const its = consumers?.filter((one) => one.group === group).length ?? null;
  // Without a group in the address, it is the first one of the namespace, whose name is not known here.
  return group === null && its !== consumers?.length ? null : its;
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
  // The rest of an element that is gone stays on the page.
  const isGone = known.error instanceof ApiError && known.error.code === 'element-not-found';
  const state = isGone ? null : (element?.state ?? null);
  const headers = Object.entries(element?.headers ?? {});
  const text = element === null || element.body === null ? null : wholeText(element.body);
  /** The queue that a dead letter left. */
  const leftQueue = element?.headers['x-dl-from-queue'];
  return (
    <>
      <div>
        <Crumbs of={of} />
        <div class="page-head">
          <h1 class="grow mono element-id">
            {id} {state !== null && <StateBadge state={state} />}
          </h1>
          {element !== null && !isGone && (
            <div class="actions">
              <Button icon="refresh" onClick={known.reload}>
                Reload
              </Button>
              {leftQueue !== undefined && may('manage', ns) && may('write', ns) && state !== 'reserved' && (
                <Button icon="redrive" class="primary" onClick={() => (action.value = 'redrive')}>
                  Redrive …
                </Button>
              )}
              {may('write', ns) && text !== null && (
                <Button icon="copy" onClick={() => (isCloning.value = true)}>
                  Clone and edit …
                </Button>
              )}
              {may('manage', ns) && (
                <Menu title="More actions" icon="more" className="square">
                  {actionsOn(ns, element.state).map((name) => (
                    <Button
                      key={name}
                      icon={BULK_ACTIONS[name].icon}
                      class={name === 'delete' ? 'danger' : ''}
                      onClick={() => (action.value = name)}
                    >
                      {BULK_ACTIONS[name].name} …
                    </Button>
                  ))}
                </Menu>
              )}
            </div>
          )}
        </div>
      </div>
      <Failure error={known.error} retry={known.reload} />
      {isGone && <OtherGroups of={of} id={id} group={group} />}
      {element === null && known.isLoading && <Loading what="Loading the element" />}
      {element !== null && (
        <div class="element">
          <div class="stack">
            {!isGone && <WhyNotDelivered of={of} element={element} />}
            <Card
              title="Body"
              aside={
                <>
                  <span class="muted">
                    {element.contentType ?? 'no content type'} · {bytes(element.bytes)}
                  </span>
                  {element.body !== null && (
                    <a class="button quiet" href={downloadUrl(of, id, group)} download={`${queue}-${id}`}>
                      <Icon name="download" /> Download
                    </a>
                  )}
                </>
              }
            >
              <div class="body">
                {element.body === null ? (
                  <p class="muted">Bodies are hidden from you in {ns}.</p>
                ) : (
                  <BodyView body={element.body} />
                )}
              </div>
            </Card>
          </div>
          <div class="stack">
            <ElementTimeline ns={ns} element={element} />
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
            if (outcome === 'changes' && done === 'redrive' && element !== null && leftQueue !== undefined)
              go(href(['q', ns, leftQueue, 'watch', firstIdOf(element)], { dead: queue, left: id }));
            else if (outcome === 'changes' && (done === 'delete' || done === 'move' || done === 'redrive'))
              go(queueHref(ns, queue));
            else if (outcome !== 'none') known.reload();
          }}
        />
      )}
      {isCloning.value && element !== null && text !== null && (
        <InsertDialog
          into={of}
          draft={{
            text,
            contentType: element.contentType ?? '',
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
  if (element?.state === 'scheduled') return Date.parse(element.mature);
  return element?.holder == null ? null : Date.parse(element.holder.until);
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
function wholeText({ content, isCut, isUnreadable }: ElementBody): string | null {
  const text = isCut || isUnreadable ? null : decode(content);
  if (text === null || new TextEncoder().encode(text).length !== content.length) return null;
  return hasUniformLineEnds(text) ? text : null;
}

function affectsNamespace({ alarm, namespaces = [] }: AlarmPicture, ns: string): boolean {
  return alarm === 'engine-unavailable' && namespaces.includes(ns);
}

/** What happens to a reserved element when its lease ends, as part of a sentence. */
function fateOf({ tries, options }: KnownElement): string {
  if (options === null)
    return 'a try is counted, and it becomes ready again or a dead letter, as the options of the queue say';
  const { deadLetter, retryDelay } = options;
  const failed = tries + 1;
  if (deadLetter !== null && failed >= deadLetter.maxTries)
    return `its last try is counted, and it becomes a dead letter in ${named(deadLetter.queue ?? '')}`;
  if (retryDelay === null) return 'a try is counted, and it becomes ready again';
  const { first, factor = 1, max = first, jitter = 0 } = retryDelay;
  const delay = duration(Math.min(max, first * factor ** (failed - 1)) * 1000);
  return `a try is counted, and it becomes ready again ${jitter > 0 ? 'at most ' : ''}${delay} later`;
}

/** Explains why an element is not delivered now, and what would change that. */
function WhyNotDelivered({ of, element }: { readonly of: QueueNamed; readonly element: KnownElement }) {
  const { state, mature, holder, expiresAt, waiting } = element;
  version.value;
  const isPaused = queues.get(keyOf(of))?.paused === true;
  const reasons: string[] = [];
  if (state === 'scheduled') {
    const at = Date.parse(mature);
    reasons.push(
      `It ${at > clock.value ? 'matures' : 'matured'} ${relative(at, clock.value)}, at ${exact(at)}.`,
    );
  }
  if (holder !== null) {
    const until = Date.parse(holder.until);
    reasons.push(
      `It is reserved by ${holderText(holder)} since ${exact(Date.parse(holder.since))}.`,
      until > clock.value
        ? `The lease ends ${relative(until, clock.value)}; then ${fateOf(element)}.`
        : `The lease ended ${relative(until, clock.value)}; soon ${fateOf(element)}.`,
    );
  }
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

interface TimelineEntry {
  readonly at: string;
  readonly what: ComponentChildren;
}

/** The known past and future events of an element, in order. The server stores no more history than this. */
function ElementTimeline({
  ns,
  element: { insertedAt, mature, expiresAt, holder, headers, tries, reason },
}: {
  readonly ns: string;
  readonly element: BrowsedElement;
}) {
  const entries: TimelineEntry[] = [];
  const add = (at: string | null | undefined, what: ComponentChildren): void => {
    if (at != null && !Number.isNaN(Date.parse(at))) entries.push({ at, what });
  };
  add(insertedAt, 'Inserted');
  if (Date.parse(mature) > Date.parse(insertedAt))
    add(mature, Date.parse(mature) > clock.value ? 'Matures: ready from then on' : 'Matured');
  const from = headers['x-dl-from-queue'];
  if (from !== undefined) add(headers['x-dl-at'], <DeadLetterOrigin ns={ns} from={from} headers={headers} />);
  if (holder !== null) {
    add(holder.since, `Reserved by ${holderText(holder)}`);
    add(holder.until, 'The lease ends, unless it is extended or settled');
  }
  add(expiresAt, 'Expires: no longer delivered');
  entries.sort((a, b) => Date.parse(a.at) - Date.parse(b.at));
  return (
    <Card label="Timeline" title="Timeline">
      <ol class="timeline body">
        {entries.map(({ at, what }, i) => (
          <li key={i} class={Date.parse(at) > clock.value ? 'to-come' : ''}>
            <span class="muted">
              <When at={at} />
              <small>{exact(Date.parse(at)).slice(0, 19)}</small>
            </span>
            <span>{what}</span>
          </li>
        ))}
      </ol>
      <dl class="pairs body">
        <div>
          <dt>Failed tries</dt>
          <dd>{tries}</dd>
        </div>
        <div>
          <dt>Last failure</dt>
          <dd>{reason ?? '–'}</dd>
        </div>
      </dl>
    </Card>
  );
}

function DeadLetterOrigin({
  ns,
  from,
  headers: { 'x-dl-tries': tries = '0', 'x-dl-reason': reason },
}: {
  readonly ns: string;
  readonly from: string;
  readonly headers: BrowsedElement['headers'];
}) {
  return (
    <>
      Became a dead letter of <QueueLink ns={ns} queue={from} /> after{' '}
      {several(Number(tries), 'failed try', 'failed tries')}
      {reason !== undefined && `: ${named(reason)}`}
    </>
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
    <Card title="Headers" aside={<span class="muted">{headers.length}</span>}>
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
    </Card>
  );
}
