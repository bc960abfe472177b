import { useComputed, useSignal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import type { ExchangePicture } from '../../model/records.ts';
import { count, several, shortCount } from '../format.ts';
import { type Cycle, cyclesOf, placesOfExchange } from '../remote/cycles.ts';
import { exchanges, isComplete, keyOf, queues, version } from '../remote/live.ts';
import { address, href, queueHref, setQuery } from '../route.ts';
import { may, mayAnywhere, namespaces } from '../session.ts';
import { FilterField } from '../ui/filter-field.tsx';
import type { GraphDrawing, GraphEdge, GraphPlace } from '../ui/graph.ts';
import { PLACE_HEIGHT, PLACE_WIDTH } from '../ui/graph-size.ts';
import { Icon } from '../ui/icon.tsx';
import { PlainTable } from '../ui/plain-table.tsx';
import { QueueLink } from '../ui/queue-link.tsx';
import { Badge, Empty, Loading } from '../ui/states.tsx';

/** Maximum exchanges in the graph: a larger one would be unreadable. */
const MAX_DRAWN = 60;
/** Maximum exchanges in the table: it renders again with every change. */
const MAX_LISTED = 200;

type RunState = Pick<ExchangePicture, 'stopped' | 'lastError'>;

function stateOf({ stopped, lastError }: RunState): string {
  if (lastError !== null) return 'Stopped by an error';
  return stopped === true ? 'Stopped' : 'Running';
}

export function ExchangeState(state: RunState) {
  const word = stateOf(state);
  if (state.lastError !== null) return <Badge level="bad">{word}</Badge>;
  if (state.stopped === true)
    return (
      <Badge level="warn" icon="paused">
        {word}
      </Badge>
    );
  return <Badge level="good">{word}</Badge>;
}

/** The exchanges as a graph and as a table. */
export function Exchanges() {
  const all = useComputed(() => {
    version.value;
    return [...exchanges.values()].sort((a, b) => a.id.localeCompare(b.id));
  });
  const cycles = useComputed(() => cyclesOf(all.value));
  if (!isComplete.value) return <Loading />;
  const filter = address.value.query.get('filter') ?? '';
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
            <FilterField filter={filter} label="Filter exchanges" placeholder="Name, queue, stopped …" />
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
            matching.length > 0 && <ExchangeGraph all={matching} cycles={cycles.value} />
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
  const text = [id, ...names, stateOf(state)].join('\n').toLowerCase();
  return filter
    .toLowerCase()
    .split(/\s/)
    .every((word) => text.includes(word));
}

/** The cycle that an exchange is part of. */
function cycleOf(picture: ExchangePicture, cycles: readonly Cycle[]): Cycle | undefined {
  const { key } = placesOfExchange(picture).exchange;
  return cycles.find(({ places }) => places.has(key));
}

/** The cycles that the graph marks, as text. */
function Cycles({ all }: { readonly all: readonly Cycle[] }) {
  return (
    <section class="card" aria-label="Cycles">
      <header>
        <h2 class="grow">{all.length === 1 ? 'A cycle' : `${count(all.length)} cycles`}</h2>
        <span class="muted">an element may return to the same queue, until it has too many hops</span>
      </header>
      <ul class="body cycles">
        {all.map(({ places, way }) => (
          <li key={way.join(' ')}>
            <Icon name="refresh" /> <bdi>{way.join(' → ')}</bdi>
            {places.size > way.length - 1 && (
              <span class="muted">
                {' '}
                and {several(places.size - way.length + 1, 'more place')} that lead back
              </span>
            )}
          </li>
        ))}
      </ul>
    </section>
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
        empty={
          <Empty title="No exchange matches the filter" icon="search">
            <button type="button" class="link" onClick={() => setQuery({ filter: null })}>
              Show all exchanges
            </button>
          </Empty>
        }
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
            cell: (one) => (
              <>
                <ExchangeState stopped={one.stopped} lastError={one.lastError} />{' '}
                {cycleOf(one, cycles) !== undefined && (
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
                      <QueueLink ns={ns} queue={q} /> {count(stats.dst?.[i]?.matched ?? 0)}
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

/** A name that fits into its place in the graph. Not cut inside of a character. */
function clipped(name: string): string {
  const characters = [...name];
  return characters.length > 22 ? `${characters.slice(0, 21).join('')}…` : name;
}

function placesOf(
  all: readonly ExchangePicture[],
  cycles: readonly Cycle[],
): { places: GraphPlace[]; edges: GraphEdge[] } {
  const places = new Map<string, GraphPlace>();
  const edges: GraphEdge[] = [];
  const areInCycle = (...keys: readonly string[]): boolean =>
    cycles.some(({ places: of }) => keys.every((key) => of.has(key)));
  const queuePlace = (key: string, ns: string, q: string): void => {
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
  };
  const connect = (from: string, to: string, label: string): void => {
    edges.push({ from, to, label, isInCycle: areInCycle(from, to) });
  };
  for (const picture of all) {
    const { id, src, stats, stopped, lastError } = picture;
    const { source, exchange, destinations } = placesOfExchange(picture);
    const isBad = stopped === true || lastError !== null;
    places.set(exchange.key, {
      key: exchange.key,
      label: id,
      kind: 'exchange',
      href: href(['x', id]),
      isBad,
      note: [isBad ? 'stopped' : 'exchange', areInCycle(exchange.key) && 'in a cycle']
        .filter(Boolean)
        .join(' · '),
    });
    queuePlace(source.key, src.ns, src.q);
    connect(source.key, exchange.key, '');
    for (const { key, name, ns, at } of destinations) {
      queuePlace(key, ns, name);
      connect(exchange.key, key, shortCount(stats.dst?.[at]?.matched ?? 0));
    }
  }
  return { places: [...places.values()], edges };
}

/** The graph of exchanges, redrawn when exchanges or their counts change. The table below has the same content. */
function ExchangeGraph({
  all,
  cycles,
}: {
  readonly all: readonly ExchangePicture[];
  readonly cycles: readonly Cycle[];
}) {
  const drawing = useSignal<GraphDrawing | null>(null);
  const isMissing = useSignal(false);
  const { places, edges } = placesOf(all, cycles);
  const shape = JSON.stringify([places, edges]);
  useEffect(() => {
    let isGone = false;
    import('../ui/graph.ts').then(
      ({ drawGraph }) => {
        if (!isGone) drawing.value = drawGraph(places, edges);
      },
      // The file is gone after an update of the server, or the server is unavailable. The table has the same content.
      () => {
        isMissing.value = true;
      },
    );
    return () => {
      isGone = true;
    };
  }, [shape]);
  const shown = drawing.value;
  if (shown === null && isMissing.value) return null;
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard
    <section class="card scrolls graph" tabIndex={0} aria-label="Graph of queues and exchanges">
      {shown !== null && (
        <svg width={shown.width} height={shown.height}>
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
          {shown.edges.map(({ from, to, points, label, isInCycle, x, y }) => (
            <g key={`${from} ${to} ${label} ${x} ${y}`}>
              <path
                class={`edge ${isInCycle ? 'in-cycle' : ''}`}
                marker-end="url(#arrow)"
                d={`M${points.map((one) => `${one.x} ${one.y}`).join('L')}`}
              />
              {label !== '' && (
                <text class="edge-label" x={x} y={y - 4} text-anchor="middle">
                  {label}
                </text>
              )}
            </g>
          ))}
          {shown.places.map((one) => (
            <a key={one.key} href={one.href}>
              <rect
                class={`${one.kind} ${one.isBad ? 'bad' : ''}`}
                x={one.x - PLACE_WIDTH / 2}
                y={one.y - PLACE_HEIGHT / 2}
                width={PLACE_WIDTH}
                height={PLACE_HEIGHT}
                rx={one.kind === 'queue' ? 6 : 22}
              />
              <text x={one.x} y={one.y - 2} text-anchor="middle">
                {clipped(one.label)}
              </text>
              <text class="place-note" x={one.x} y={one.y + 13} text-anchor="middle">
                {one.note}
              </text>
            </a>
          ))}
        </svg>
      )}
    </section>
  );
}
