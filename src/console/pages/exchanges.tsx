import { useComputed, useSignal } from '@preact/signals';
import { useEffect, useMemo } from 'preact/hooks';
import type { ExchangePicture } from '../../model/records.ts';
import { count, named, several, shortCount } from '../format.ts';
import { connection, exchanges, isStopped, keyOf, queues, useWholeState, version } from '../remote/live.ts';
import { href, queueHref } from '../route.ts';
import { may, mayAnywhere, namespaces } from '../session.ts';
import { Card } from '../ui/card.tsx';
import { FilterField, filterOfPage, NoMatch } from '../ui/filter-field.tsx';
import type { Cycle, GraphContent } from '../ui/graph.ts';
import { Icon, type IconName } from '../ui/icon.tsx';
import { PlainTable } from '../ui/plain-table.tsx';
import { QueueLink } from '../ui/queue-links.tsx';
import { Badge, Empty, type Level, Loading } from '../ui/states.tsx';

/** Maximum exchanges in the graph: a larger one would be unreadable. */
const MAX_DRAWN = 60;
/** Maximum exchanges in the table: it renders again with every change. */
const MAX_LISTED = 200;

/** What lays out the graph and finds cycles. It is loaded after the page. */
type GraphTools = typeof import('../ui/graph.ts');

type RunState = Pick<ExchangePicture, 'stopped' | 'lastError'>;

function stateOf({ stopped, lastError }: RunState): readonly [Level, IconName, string] {
  if (lastError !== null) return ['bad', 'bad', 'Stopped by an error'];
  return stopped === true ? ['warn', 'paused', 'Stopped'] : ['good', 'ok', 'Running'];
}

export function ExchangeState(state: RunState) {
  const [level, icon, word] = stateOf(state);
  return (
    <Badge level={level} icon={icon}>
      {word}
    </Badge>
  );
}

/** The exchanges as a graph and as a table. */
export function Exchanges() {
  const all = useComputed(() => {
    version.value;
    return [...exchanges.values()].sort((a, b) => a.id.localeCompare(b.id));
  });
  const tools = useSignal<GraphTools | null>(null);
  const isLive = connection.value === 'live';
  useEffect(() => {
    if (tools.peek() !== null) return;
    import('../ui/graph.ts').then(
      (loaded) => {
        tools.value = loaded;
      },
      // The file is gone after an update of the server, or the server is unavailable. The table is shown without it.
      () => {},
    );
  }, [isLive]);
  const cycles = useComputed(() => tools.value?.cyclesOf(contentOf(all.value)) ?? []);
  const isWhole = useWholeState();
  if (!isWhole) return <Loading />;
  const filter = filterOfPage();
  const matching = all.value.filter((one) => isMatch(one, filter));
  const mayMake = mayAnywhere('exchange');
  return (
    <>
      <div class="page-head">
        <h1 class="grow">Exchanges</h1>
        {all.value.length > 0 && (
          <>
            <span class="muted" role="status">
              {filter !== '' && `${count(matching.length)} of `}
              {several(all.value.length, 'exchange')}
            </span>
            <FilterField label="Filter exchanges" placeholder="Name, queue, stopped …" />
          </>
        )}
        {mayMake && (
          <a class="button" href={href(['x-new'])}>
            <Icon name="plus" /> New exchange
          </a>
        )}
      </div>
      {all.value.length === 0 ? (
        <section class="card">
          {namespaces().length === 0 ? (
            <Empty title="You may not see any namespace" icon="lock" />
          ) : (
            <Empty title="There are no exchanges" icon="exchange">
              An exchange consumes a queue and forwards each element to the queues whose selectors accept it.
            </Empty>
          )}
        </section>
      ) : (
        <>
          {matching.length <= MAX_DRAWN ? (
            matching.length > 0 &&
            tools.value !== null && (
              <ExchangeGraph content={contentOf(matching)} cycles={cycles.value} tools={tools.value} />
            )
          ) : (
            <p class="muted">
              The graph shows up to {MAX_DRAWN} exchanges. Filter them by their names, queues, namespaces or
              states to see it.
            </p>
          )}
          {cycles.value.length > 0 && <Cycles all={cycles.value} />}
          <ExchangeTable all={matching} cycles={cycles.value} />
        </>
      )}
    </>
  );
}

/** Whether each word of the filter is part of the name, a queue, a namespace or the state of an exchange. */
function isMatch({ id, src, dst, ...state }: ExchangePicture, filter: string): boolean {
  const names = [src, ...dst].flatMap(({ ns = '', q = '' }) => [ns, q]);
  const [, , word] = stateOf(state);
  const text = [id, ...names, word].join('\n').toLowerCase();
  return filter
    .toLowerCase()
    .split(/\s/)
    .every((one) => text.includes(one));
}

function keyOfExchange(id: string): string {
  return `exchange ${id}`;
}

/** Whether places are in the same cycle. */
function areInCycle(cycles: readonly Cycle[], ...keys: readonly string[]): boolean {
  return cycles.some(({ places }) => keys.every((key) => places.has(key)));
}

/** The cycles that the graph marks, as text. */
function Cycles({ all }: { readonly all: readonly Cycle[] }) {
  return (
    <Card
      label="Cycles"
      title={all.length === 1 ? 'A cycle' : `${count(all.length)} cycles`}
      aside={<span class="muted">an element may return to the same queue, until it has too many hops</span>}
    >
      <ul class="body cycles">
        {all.map(({ places, way }) => (
          <li key={way.join(' ')}>
            <Icon name="refresh" /> <bdi>{way.map(named).join(' → ')}</bdi>
            {places.size > way.length - 1 && (
              <span class="muted">
                {' '}
                and {several(places.size - way.length + 1, 'more place')} that lead back
              </span>
            )}
          </li>
        ))}
      </ul>
    </Card>
  );
}

function ExchangeTable({
  all,
  cycles,
}: {
  readonly all: readonly ExchangePicture[];
  readonly cycles: readonly Cycle[];
}) {
  return (
    <section class="card">
      <PlainTable
        label="Exchanges"
        rows={all.slice(0, MAX_LISTED)}
        empty={<NoMatch title="No exchange" all="exchanges" />}
        keyOf={({ id }) => id}
        columns={[
          {
            title: 'Exchange',
            cell: ({ id }) => (
              <a href={href(['x', id])}>
                <bdi>{id}</bdi>
              </a>
            ),
          },
          {
            title: 'State',
            className: 'long',
            cell: (one) => (
              <>
                <ExchangeState stopped={one.stopped} lastError={one.lastError} />{' '}
                {areInCycle(cycles, keyOfExchange(one.id)) && (
                  <Badge level="warn" icon="refresh">
                    In a cycle
                  </Badge>
                )}
              </>
            ),
          },
          { title: 'From', cell: ({ src }) => <QueueLink ns={src.ns} queue={src.q} /> },
          {
            title: 'To, with the number of elements forwarded',
            className: 'destinations long',
            cell: ({ dst, stats }) =>
              dst.map(({ q, ns, hidden }, i) => (
                <div key={i}>
                  {hidden === true ? (
                    <span class="muted">hidden from you</span>
                  ) : (
                    <>
                      <QueueLink ns={ns} queue={q} /> {forwardedTo(stats, i, count)}
                    </>
                  )}
                </div>
              )),
          },
          { title: 'No route', isNumber: true, cell: ({ stats }) => count(stats.no_route) },
          { title: 'Put back', isNumber: true, cell: ({ stats }) => count(stats.put_back) },
        ]}
      />
      {all.length > MAX_LISTED && (
        <p class="bar">
          The first {count(MAX_LISTED)} of {count(all.length)} are listed. The filter finds the others.
        </p>
      )}
    </section>
  );
}

/** How many elements went to a destination. The server tells nobody who may not see one of them. */
function forwardedTo(
  { dst }: ExchangePicture['stats'],
  at: number,
  format: (value: number) => string,
): string {
  const matched = dst?.[at]?.matched;
  return matched === undefined ? '–' : format(matched);
}

/** A name that fits into its place in the graph. Not cut inside of a character. */
function clipped(name: string): string {
  const characters = [...name];
  return characters.length > 22 ? `${characters.slice(0, 21).join('')}…` : name;
}

/** Returns what is drawn of exchanges. Destinations that the user may not see are left out. */
function contentOf(all: readonly ExchangePicture[]): GraphContent {
  const places = new Map<string, GraphContent['places'][number]>();
  const edges: GraphContent['edges'][number][] = [];
  const queuePlace = (ns: string, q: string): string => {
    const key = `queue ${JSON.stringify([ns, q])}`;
    const held = queues.get(keyOf({ ns, queue: q }));
    const size = may('read', ns) ? shortCount(held?.totalSize ?? 0) : null;
    places.set(key, {
      key,
      label: q,
      kind: 'queue',
      href: queueHref(ns, q),
      isBad: held?.paused === true,
      note: [clipped(ns), held?.paused === true && 'paused', size].filter(Boolean).join(' · '),
    });
    return key;
  };
  for (const one of all) {
    const { id, src, dst, stats } = one;
    const key = keyOfExchange(id);
    const isBad = isStopped(one);
    const note = isBad ? 'stopped' : 'exchange';
    places.set(key, { key, label: id, kind: 'exchange', href: href(['x', id]), isBad, note });
    edges.push({ key: `to ${key}`, from: queuePlace(src.ns, src.q), to: key, label: '' });
    for (const [at, { ns, q, hidden }] of dst.entries()) {
      if (hidden === true) continue;
      const label = forwardedTo(stats, at, shortCount);
      edges.push({ key: `${at} of ${key}`, from: key, to: queuePlace(ns, q), label });
    }
  }
  return { places: [...places.values()], edges };
}

/** The graph of exchanges. The table below has the same content. */
function ExchangeGraph({
  content,
  cycles,
  tools,
}: {
  readonly content: GraphContent;
  readonly cycles: readonly Cycle[];
  readonly tools: GraphTools;
}) {
  const { places, edges } = content;
  const { layOut, PLACE_HEIGHT, PLACE_WIDTH } = tools;
  // Counts change twice a second, and a layout of 60 exchanges takes a tenth of a second.
  const shape = JSON.stringify([
    places.map(({ key }) => key),
    edges.map(({ key, from, to }) => [key, from, to]),
  ]);
  const layout = useMemo(() => layOut(content), [shape]);
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard
    <section class="card scrolls graph" tabIndex={0} aria-label="Graph of queues and exchanges">
      <svg width={layout.width} height={layout.height}>
        <title>Queues and exchanges; the table below says the same in words</title>
        <defs>
          <marker
            id="arrow"
            viewBox="0 0 8 8"
            refX="7"
            refY="4"
            markerUnits="userSpaceOnUse"
            markerWidth="9"
            markerHeight="9"
            orient="auto"
          >
            <path d="M0 0.5 7.5 4 0 7.5z" />
          </marker>
        </defs>
        {edges.map(({ key, from, to, label }) => {
          const line = layout.edges.get(key);
          if (line === undefined) return null;
          return (
            <g key={key}>
              <path
                class={`edge ${areInCycle(cycles, from, to) ? 'in-cycle' : ''}`}
                marker-end="url(#arrow)"
                d={`M${line.points.map(({ x, y }) => `${x} ${y}`).join('L')}`}
              />
              {label !== '' && (
                <text class="edge-label" x={line.x} y={line.y - 4} text-anchor="middle">
                  {label}
                </text>
              )}
            </g>
          );
        })}
        {places.map(({ key, label, kind, href: to, isBad, note }) => {
          const at = layout.places.get(key);
          if (at === undefined) return null;
          return (
            <a key={key} href={to}>
              <rect
                class={`${kind} ${isBad ? 'bad' : ''}`}
                x={at.x - PLACE_WIDTH / 2}
                y={at.y - PLACE_HEIGHT / 2}
                width={PLACE_WIDTH}
                height={PLACE_HEIGHT}
                rx={kind === 'queue' ? 6 : 22}
              />
              <text x={at.x} y={at.y - 2} text-anchor="middle">
                {clipped(label)}
              </text>
              <text class="place-note" x={at.x} y={at.y + 13} text-anchor="middle">
                {areInCycle(cycles, key) && kind === 'exchange' ? `${note} · in a cycle` : note}
              </text>
            </a>
          );
        })}
      </svg>
    </section>
  );
}
