import { useSignal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import type { BrowsedElement, BrowsePage } from '../../model/records.ts';
import { get, type QueueNamed, queuePath } from '../api.ts';
import { count, named, several } from '../format.ts';
import { groupsOf, havingHeader, holderText } from '../remote/elements.ts';
import { useResource } from '../remote/resource.ts';
import { address, elementHref, queueHref } from '../route.ts';
import { clock } from '../timers.ts';
import { Card } from '../ui/card.tsx';
import { Crumbs } from '../ui/queue-links.tsx';
import { Failure, Loading } from '../ui/states.tsx';
import { When } from '../ui/when.tsx';

/** Maximum pages that are searched for an element. The server examines up to 10,000 elements per page. */
const MAX_PAGES = 5;
/** Maximum groups of a stream that are searched for it. */
const MAX_GROUPS = 10;

/** A redriven element. Its id changes with each queue; its first id is kept in a header. */
interface RedrivenElement {
  readonly firstId: string;
  readonly source: QueueNamed;
  readonly deadLetters: QueueNamed;
}

/** Where a redriven element is now. */
type ElementLocation =
  | {
      readonly kind: 'source' | 'dead letter';
      readonly element: BrowsedElement;
      readonly group: string | null;
    }
  /** Not found among the first `looked` elements of both queues; one has more elements, or the source more groups. */
  | { readonly kind: 'behind'; readonly looked: number }
  | { readonly kind: 'gone' };

/** The result of a search, and how many elements the server examined for it. */
interface LocatedElement {
  readonly location: ElementLocation;
  readonly examined: number;
}

/** The header with the first id of an element. */
const ORIGIN = 'x-ks-origin-id';

/** @returns the first id of an element */
export function firstIdOf({ id, headers }: BrowsedElement): string {
  return headers[ORIGIN] ?? id;
}

/** Searches the source first, then the dead-letter queue, to find an element that moves in between. */
async function locate(redriven: RedrivenElement, signal: AbortSignal): Promise<LocatedElement> {
  const { source, deadLetters, firstId } = redriven;
  const groups = (await groupsOf(source, signal)) ?? [null];
  let looked = 0;
  let examined = 0;
  let isWhole = groups.length <= MAX_GROUPS;
  const places = [
    ...groups.slice(0, MAX_GROUPS).map((group) => ({ kind: 'source' as const, of: source, group })),
    { kind: 'dead letter' as const, of: deadLetters, group: null },
  ];
  for (const { kind, of, group } of places) {
    const found = await search(of, group, firstId, signal);
    examined += found.looked;
    const { element } = found;
    if (element !== null) return { location: { kind, element, group }, examined };
    looked = Math.max(looked, found.looked);
    isWhole &&= found.isWhole;
  }
  return { location: isWhole ? { kind: 'gone' } : { kind: 'behind', looked }, examined };
}

interface SearchResult {
  readonly element: BrowsedElement | null;
  readonly looked: number;
  readonly isWhole: boolean;
}

async function search(
  of: QueueNamed,
  group: string | null,
  firstId: string,
  signal: AbortSignal,
): Promise<SearchResult> {
  const where = havingHeader(ORIGIN, firstId);
  let after: string | null = null;
  let looked = 0;
  for (let pages = 0; pages < MAX_PAGES; pages += 1) {
    const page: BrowsePage = await get<BrowsePage>(queuePath(of, 'elements'), {
      query: { where, group, body: 'none', limit: 1, after },
      signal,
    });
    looked += page.looked;
    const [element] = page.elements;
    if (element !== undefined) return { element, looked, isWhole: true };
    if (page.next === null) return { element: null, looked, isWhole: true };
    after = page.next;
  }
  return { element: null, looked, isWhole: false };
}

/** How often the element is searched, in seconds. */
const LOOK_EVERY_S = 2;
/** The same, if a search examines more than {@link MANY} elements: 50,000 take the server seconds. */
const RARELY_S = 30;
const MANY = 2_000;

interface WatchedMoment {
  readonly at: number;
  readonly text: string;
  /** Link to the element's page; null if the element was not found. */
  readonly href: string | null;
}

/**
 * Follows a redriven dead letter: `/q/NS/QUEUE/watch/FIRST-ID?dead=QUEUE&left=ID`. `left` is the id that it had as a
 * dead letter.
 */
export function WatchedElement({
  source,
  firstId,
}: {
  readonly source: QueueNamed;
  readonly firstId: string;
}) {
  const { ns } = source;
  const dead = address.value.query.get('dead') ?? '';
  const left = address.value.query.get('left');
  const redriven: RedrivenElement = { firstId, source, deadLetters: { ns, queue: dead } };
  const seconds = useSignal(LOOK_EVERY_S);
  const found = useResource(firstId, (signal) => locate(redriven, signal), seconds.value * 1000);
  const seen = useSignal<readonly WatchedMoment[]>([]);
  useEffect(() => {
    if (found.value === null) return;
    const { location, examined } = found.value;
    seconds.value = examined > MANY ? RARELY_S : LOOK_EVERY_S;
    const moment = momentOf(location, redriven, left);
    if (seen.peek().at(-1)?.text === moment.text) return;
    seen.value = [...seen.peek(), moment];
  }, [found.value]);
  return (
    <>
      <div>
        <Crumbs of={source} />
        <div class="page-head">
          <h1 class="grow mono element-id">{firstId}</h1>
        </div>
      </div>
      <Failure error={found.error} retry={found.reload} />
      <Card
        label="What happened to it"
        title="What happened to it"
        aside={<span class="muted">checked every {seconds.value} s while refreshing is on</span>}
      >
        {seen.value.length === 0 && found.isLoading && <Loading what="Looking for it" />}
        <ol class="timeline body" aria-live="polite">
          {seen.value.map(({ at, text, href }, i) => (
            <li key={i}>
              <span class="muted">
                <When at={at} />
              </span>
              <span>{href === null ? text : <a href={href}>{text}</a>}</span>
            </li>
          ))}
        </ol>
        <p class="body muted">
          Changes between two checks are not shown. <a href={queueHref(ns, dead)}>Back to the dead letters</a>
        </p>
      </Card>
    </>
  );
}

function momentOf(
  found: ElementLocation,
  { source, deadLetters }: RedrivenElement,
  left: string | null,
): WatchedMoment {
  const at = clock.peek();
  if (found.kind === 'gone')
    return {
      at,
      text: `It is no longer in ${named(source.queue)}, and not a dead letter: it was consumed, moved or removed`,
      href: null,
    };
  if (found.kind === 'behind')
    return {
      at,
      text: `It is not among the first ${count(found.looked)} elements of ${named(source.queue)}, nor of the dead letters`,
      href: null,
    };
  const { element } = found;
  if (found.kind === 'dead letter') {
    const reason = element.headers['x-dl-reason'];
    // A dead letter that returned has another id.
    const kind =
      left === null ? 'a dead letter' : element.id === left ? 'still a dead letter' : 'a dead letter again';
    return {
      at,
      text: `It is ${kind}${reason === undefined ? '' : `: ${named(reason)}`}`,
      href: elementHref(deadLetters, element.id),
    };
  }
  const { state, holder, tries } = element;
  const failed = tries === 0 ? '' : `, after ${several(tries, 'failed try', 'failed tries')}`;
  const by = holder === null ? '' : ` by ${holderText(holder)}`;
  return {
    at,
    text: `It is ${state} in ${named(source.queue)}${by}${failed}`,
    href: elementHref(source, element.id, found.group),
  };
}
