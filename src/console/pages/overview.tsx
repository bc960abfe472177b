import { type ReadonlySignal, useComputed } from '@preact/signals';
import type {
  AlarmPicture,
  DeadLetterQueue,
  DeadLetters,
  EngineRow,
  Engines,
  ExchangePicture,
  NodeRecord,
  QueuePicture,
} from '../../model/records.ts';
import { messageOf } from '../api.ts';
import { bytes, count, duration, named, rate, several, shortCount } from '../format.ts';
import {
  alarms,
  exchanges,
  isStopped,
  keyOf,
  knownRates,
  nodes,
  queues,
  ratesOf,
  readyForMs,
  readySince,
  useWholeState,
  version,
} from '../remote/live.ts';
import { useGet, useReconnect } from '../remote/resource.ts';
import { href, namespaceHref, queueHref } from '../route.ts';
import { may, mayAnywhere, namespaces } from '../session.ts';
import { clock } from '../timers.ts';
import { Card } from '../ui/card.tsx';
import { Charts, RangeChoice } from '../ui/charts.tsx';
import { Icon } from '../ui/icon.tsx';
import { Menu } from '../ui/menu.tsx';
import { MissingNodes, nodeName } from '../ui/nodes.tsx';
import { PlainTable } from '../ui/plain-table.tsx';
import { Badge, Empty, Loading, NeedsRight } from '../ui/states.tsx';
import { When } from '../ui/when.tsx';

const MAX_CONCERNS = 10;
/** Each dead-letter queue may have an alarm. */
const MAX_ALARMS = 20;
/** Maximum options listed that nodes configure differently. */
const MAX_CONFLICTS = 10;

/** Shows problems first, then totals, charts, namespaces and nodes. */
export function Overview() {
  // Read only once: examining 20,000 dead letters takes the server a second. The stream updates their number.
  const dead = useGet<DeadLetters>('dead-letters');
  useReconnect(() => {
    if (dead.value !== null && dead.value.unavailable.length > 0) dead.reload();
  });
  const engines = useGet<Engines>('engines', { everyMs: 15_000 });
  const totals = useComputed(() => {
    version.value;
    return sumUp(clock.value);
  });
  if (!useWholeState()) return <Loading />;
  return (
    <>
      <div class="page-head">
        <h1 class="grow">Overview</h1>
        <RangeChoice />
      </div>
      <Alarms />
      <Figures totals={totals} dead={dead.value} deadError={dead.error} />
      <Concerns />
      <Charts where="history" />
      <div class="columns">
        <Namespaces totals={totals} engines={engines.value} />
        <Nodes />
      </div>
    </>
  );
}

/** The text of an alarm. */
function alarmText({
  alarm,
  engine,
  ns,
  queue,
  detail,
  namespaces: of = [],
  totalSize,
}: AlarmPicture): string {
  if (alarm === 'engine-unavailable') {
    const state = detail === 'away' ? 'is unavailable' : detail;
    return `Engine ${engine} ${state}. Affected namespaces: ${of.join(', ')}.`;
  }
  if (alarm === 'disk-nearly-full') {
    return `The disk of ${engine} is nearly full: inserts are rejected in ${of.join(', ')}. Free some space, or consume.`;
  }
  if (alarm === 'dead-letters-grew') {
    return `Dead letters arrived in ${named(queue ?? '')} of ${ns} in the last 5 min; it has ${count(totalSize ?? 0)}.`;
  }
  return `${alarm} ${[engine, ns, queue, detail].filter(Boolean).join(' ')}`;
}

function Alarms() {
  version.value;
  // Those of engines first.
  const all = [...alarms.values()].sort(
    (a, b) => Number(a.queue !== undefined) - Number(b.queue !== undefined),
  );
  if (all.length === 0) return null;
  return (
    <section class="alarms" aria-label="Alarms">
      {all.slice(0, MAX_ALARMS).map((alarm) => {
        const { alarm: name, ns, queue, since } = alarm;
        const isBad = name === 'engine-unavailable';
        return (
          <div key={JSON.stringify([name, alarm.engine, ns, queue])} class={`failure ${isBad ? '' : 'warn'}`}>
            <Icon name={isBad ? 'bad' : 'warn'} />
            <div>
              <p>{alarmText(alarm)}</p>
              <p class="muted">
                Began <When at={since} />
                {ns !== undefined && queue !== undefined && (
                  <>
                    {' · '}
                    <a href={queueHref(ns, queue)}>Show the queue</a>
                  </>
                )}
              </p>
            </div>
          </div>
        );
      })}
      {all.length > MAX_ALARMS && <p class="muted">and {count(all.length - MAX_ALARMS)} more</p>}
    </section>
  );
}

interface QueueTotals {
  ready: number;
  scheduled: number;
  reserved: number;
  in: number;
  out: number;
  /** ISO 8601. */
  oldest: string | null;
  queues: number;
  paused: number;
}

interface QueueSums {
  /** Whether the rates are known. */
  readonly hasRates: boolean;
  readonly all: Readonly<QueueTotals>;
  readonly byNamespace: ReadonlyMap<string, Readonly<QueueTotals>>;
}

const NONE: Readonly<QueueTotals> = {
  ready: 0,
  scheduled: 0,
  reserved: 0,
  in: 0,
  out: 0,
  oldest: null,
  queues: 0,
  paused: 0,
};

/** Sums up all queues in one pass, which runs at each update. */
function sumUp(now: number): QueueSums {
  const all = { ...NONE };
  const byNamespace = new Map<string, QueueTotals>();
  for (const [key, queue] of queues) {
    let ofNamespace = byNamespace.get(queue.ns);
    if (ofNamespace === undefined) {
      ofNamespace = { ...NONE };
      byNamespace.set(queue.ns, ofNamespace);
    }
    const rates = ratesOf(key, now);
    for (const sum of [all, ofNamespace]) {
      sum.ready += queue.size;
      sum.scheduled += queue.schedSize;
      sum.reserved += queue.resvSize;
      sum.queues += 1;
      if (queue.paused) sum.paused += 1;
      sum.oldest = earlier(sum.oldest, readySince(queue));
      sum.in += rates.in;
      sum.out += rates.out;
    }
  }
  return { hasRates: knownRates() !== 'none', all, byNamespace };
}

/** The earlier of two ISO 8601 times, which sort as strings. */
function earlier(a: string | null, b: string | null): string | null {
  if (a === null || b === null) return a ?? b;
  return a < b ? a : b;
}

function Figures({
  totals,
  dead,
  deadError,
}: {
  readonly totals: ReadonlySignal<QueueSums>;
  readonly dead: DeadLetters | null;
  readonly deadError: unknown;
}) {
  const { hasRates, all } = totals.value;
  const { ready, scheduled, reserved, in: inserted, out, oldest, paused } = all;
  const rateText = (perSecond: number): string => (hasRates ? rate(perSecond) : '–');
  const oldestMs = oldest === null ? null : Math.max(0, clock.value - Date.parse(oldest));
  const deadCount = dead?.queues.reduce((sum, one) => sum + countNow(one), 0) ?? null;
  const oldestText = oldestMs === null ? '–' : duration(oldestMs);
  const ofQueues = [
    ['Ready', shortCount(ready), `oldest ${oldestText}`],
    ['Reserved', shortCount(reserved), 'held by consumers'],
    ['Scheduled', shortCount(scheduled), 'mature later'],
    ['In', rateText(inserted), 'inserted per second'],
    ['Out', rateText(out), 'taken per second'],
  ] as const;
  return (
    <section class="figures" aria-label="Totals">
      {ofQueues.map(([label, value, note]) => (
        <Figure
          key={label}
          label={label}
          // Without the right, the stream sends no queues.
          value={mayAnywhere('read') ? value : '–'}
          note={note}
          // The queues that contribute most to it.
          to={href(['queues'], { sort: `-${label.toLowerCase()}` })}
        />
      ))}
      <Figure
        label="Dead letters"
        value={deadCount === null || !mayAnywhere('browse') ? '–' : shortCount(deadCount)}
        note={deadError === null ? scopeOf(dead) : messageOf(deadError)}
        isBad={deadCount !== null && deadCount > 0}
        to={href(['dead-letters'])}
      />
      <Figure
        label="Paused"
        value={mayAnywhere('read') ? count(paused) : '–'}
        note={paused === 1 ? 'queue' : 'queues'}
        to={href(['queues'], { filter: 'paused' })}
      />
    </section>
  );
}

/** Says which dead letters are counted. */
function scopeOf(dead: DeadLetters | null): string {
  if (dead === null || dead.complete) return 'all namespaces';
  return dead.unavailable.length === 0 ? 'not of all queues' : `without ${dead.unavailable.join(', ')}`;
}

/** The stream sends no counts to a user who may browse but not read. */
function countNow(of: DeadLetterQueue): number {
  if (!may('read', of.ns)) return of.count;
  return queues.get(keyOf(of))?.totalSize ?? 0;
}

function Figure({
  label,
  value,
  note,
  to,
  isBad = false,
}: {
  readonly label: string;
  readonly value: string;
  readonly note: string;
  readonly to: string;
  readonly isBad?: boolean;
}) {
  return (
    <a class={`card figure-card ${isBad ? 'bad' : ''}`} href={to}>
      <span class="label">{label}</span>
      <span class="value">{value}</span>
      <span class="note">{note}</span>
    </a>
  );
}

/** A queue that needs attention, and why. A lower rank is more urgent. */
interface Concern {
  readonly queue: QueuePicture;
  /** Index of the reason in {@link RULE}. */
  readonly rank: number;
  /** The stopped exchange that consumes the queue, if that is the reason. */
  readonly exchange?: ExchangePicture;
}

/** How long ready elements may wait before the queue is listed. */
const LATE_MS = 60_000;

/** The reasons of {@link concerns}, as shown on the overview, most urgent first. */
const RULE = [
  'Dead letters arrived in the last five minutes.',
  'Paused with ready elements.',
  'Elements are ready, none are taken, and the exchange that consumes the queue is stopped.',
  'Elements have been ready for more than a minute, and none are taken.',
  'Elements have been ready for more than a minute, although some are taken, or are not known to be taken yet.',
] as const;

/**
 * Returns the queues that need attention, the most urgent first; within a rank, the one with the oldest ready element.
 * With 10,000 queues this runs twice a second, so times are compared as ISO strings without parsing.
 */
function concerns(now: number): readonly Concern[] {
  const grew = new Set<string>();
  for (const { alarm, ns, queue } of alarms.values()) {
    if (alarm === 'dead-letters-grew' && ns !== undefined && queue !== undefined)
      grew.add(keyOf({ ns, queue }));
  }
  const lateSince = new Date(now - LATE_MS).toISOString();
  const stopped = stoppedExchanges();
  const found: Concern[] = [];
  for (const [key, queue] of queues) {
    const exchange = stopped.get(key);
    const rank = grew.has(key) ? 0 : rankOf(key, queue, lateSince, now, exchange !== undefined);
    if (rank !== null) found.push({ queue, rank, ...(rank === 2 && exchange && { exchange }) });
  }
  return found.sort(byUrgency);
}

/** Returns the stopped exchanges by the keys of their sources, without sources that another exchange consumes. */
function stoppedExchanges(): ReadonlyMap<string, ExchangePicture> {
  const sourceOf = ({ src }: ExchangePicture): string => keyOf({ ns: src.ns, queue: src.q });
  const all = [...exchanges.values()];
  const found = new Map(all.filter(isStopped).map((one) => [sourceOf(one), one]));
  for (const one of all) if (!isStopped(one)) found.delete(sourceOf(one));
  return found;
}

function byUrgency(a: Concern, b: Concern): number {
  return a.rank - b.rank || bySince(a.queue, b.queue) || b.queue.size - a.queue.size;
}

/** The queue with the oldest ready element comes first, one without ready elements last. */
function bySince(a: QueuePicture, b: QueuePicture): number {
  const [one, other] = [readySince(a) ?? '~', readySince(b) ?? '~'];
  return one < other ? -1 : Number(one > other);
}

/** Returns null if the queue needs no attention. */
function rankOf(
  key: string,
  queue: QueuePicture,
  lateSince: string,
  now: number,
  isExchangeStopped: boolean,
): number | null {
  const since = readySince(queue);
  if (since === null) return null;
  if (queue.paused) return 1;
  if (isExchangeStopped && ratesOf(key, now).out === 0) return 2;
  if (since > lateSince || queue.queue.startsWith('__')) return null;
  return ratesOf(key, now).out > 0 || knownRates() !== 'all' ? 4 : 3;
}

/** The reason as a sentence. */
function reasonOf({ queue, rank, exchange }: Concern, now: number): string {
  if (rank === 0) return `Dead letters arrived in the last 5 min; the queue has ${count(queue.totalSize)}`;
  if (rank === 1) return `Paused; ${several(queue.size, 'element')} ready`;
  const age = duration(readyForMs(queue, now) ?? 0);
  if (exchange !== undefined)
    return `Not consumed: oldest ready for ${age}; ${exchange.lastError === null ? 'its exchange is stopped' : 'an error stopped its exchange'}`;
  if (rank === 3) return `Not consumed: oldest ready for ${age}`;
  return ratesOf(keyOf(queue), now).out > 0
    ? `Consumers are behind: oldest ready for ${age}`
    : `Oldest ready for ${age}; whether elements are taken is being measured`;
}

function Concerns() {
  const found = useComputed(() => {
    version.value;
    return concerns(clock.value);
  });
  const total = found.value.length;
  const first = found.value.slice(0, MAX_CONCERNS);
  return (
    <Card
      title="Needs attention"
      aside={
        <>
          {total > first.length && (
            <span class="muted">
              first {count(first.length)} of {count(total)}
            </span>
          )}
          <Menu title="Rules by which queues are listed" label="Rules" className="quiet">
            <ol class="rule">
              {RULE.map((line) => (
                <li key={line}>{line}</li>
              ))}
            </ol>
          </Menu>
        </>
      }
    >
      {!mayAnywhere('read') ? (
        <NeedsRight title="You may not see queues" right="read" />
      ) : total === 0 ? (
        <Empty title="No queue needs attention">Queues are listed here by the rules above.</Empty>
      ) : (
        <ul class="concerns">
          {first.map((concern) => (
            <ConcernRow key={keyOf(concern.queue)} concern={concern} />
          ))}
        </ul>
      )}
    </Card>
  );
}

function ConcernRow({ concern }: { readonly concern: Concern }) {
  const { queue, rank, exchange } = concern;
  // Dead letters, and queues without active consumers, unless somebody stopped their exchange.
  const isBad = rank === 0 || rank === 3 || (exchange !== undefined && exchange.lastError !== null);
  return (
    <li>
      <Badge level={isBad ? 'bad' : 'warn'}>{isBad ? 'Act' : 'Look'}</Badge>
      <div>
        <span class="name">
          <a href={queueHref(queue.ns, queue.queue)}>{queue.queue}</a>
          <span class="muted">{queue.ns}</span>
        </span>
        <p class="why">
          {reasonOf(concern, clock.value)}
          {exchange !== undefined && (
            <>
              {' · '}
              <a href={href(['x', exchange.id])}>
                <bdi>{exchange.id}</bdi>
              </a>
            </>
          )}
        </p>
      </div>
      <span class="number">{shortCount(queue.size)} ready</span>
    </li>
  );
}

function Namespaces({
  totals,
  engines,
}: {
  readonly totals: ReadonlySignal<QueueSums>;
  /** Null: not read yet. */
  readonly engines: Engines | null;
}) {
  const rows = namespaces().map((name) => ({ name, ...(totals.value.byNamespace.get(name) ?? NONE) }));
  const known = (ns: string, text: string): string => (may('read', ns) ? text : '–');
  const knownRate = (ns: string, perSecond: number): string =>
    totals.value.hasRates ? known(ns, rate(perSecond)) : '–';
  const alarmsOf = (name: string): readonly AlarmPicture[] =>
    [...alarms.values()].filter(({ namespaces: of }) => of?.includes(name) === true);
  return (
    <Card title="Namespaces">
      <MissingNodes missing={engines?.missing ?? []} />
      <PlainTable
        label="Namespaces"
        rows={rows}
        keyOf={({ name }) => name}
        columns={[
          {
            title: 'Namespace',
            cell: ({ name }) => <a href={namespaceHref(name)}>{name}</a>,
          },
          {
            title: 'Engine',
            cell: ({ name }) => (
              <EngineState
                its={alarmsOf(name)}
                engines={engines?.engines.filter(({ namespaces: of }) => of.includes(name)) ?? []}
              />
            ),
          },
          { title: 'Queues', isNumber: true, cell: ({ name, queues: of }) => known(name, count(of)) },
          { title: 'Ready', isNumber: true, cell: ({ name, ready }) => known(name, shortCount(ready)) },
          { title: 'In/s', isNumber: true, cell: ({ name, in: inserted }) => knownRate(name, inserted) },
          { title: 'Out/s', isNumber: true, cell: ({ name, out }) => knownRate(name, out) },
        ]}
      />
    </Card>
  );
}

function EngineState({
  its,
  engines,
}: {
  readonly its: readonly AlarmPicture[];
  readonly engines: readonly EngineRow[];
}) {
  if (its.length === 0 && engines.length === 0) return <span class="muted">–</span>;
  const [level, text] = healthOf(its, engines);
  const free = engines.flatMap(({ disk }) => (disk === null ? [] : [disk.freeBytes]));
  return (
    <>
      <Badge level={level} title={engines.map(engineText).join('\n')}>
        {text}
      </Badge>
      {free.length > 0 && <span class="muted nowrap"> {bytes(Math.min(...free))} free</span>}
    </>
  );
}

/**
 * Health of a namespace's engines, as seen by all nodes, the worst first. Alarms arrive immediately, engines are read
 * every 15 s.
 */
function healthOf(
  its: readonly AlarmPicture[],
  engines: readonly EngineRow[],
): readonly ['good' | 'warn' | 'bad', string] {
  const has = (name: string): boolean => its.some(({ alarm }) => alarm === name);
  const away = engines.filter(({ state }) => state === 'unavailable').length;
  if (has('engine-unavailable')) return ['bad', 'Unavailable'];
  if (away > 0) return ['bad', away < engines.length ? 'Unavailable on a node' : 'Unavailable'];
  if (has('disk-nearly-full')) return ['warn', 'Disk nearly full'];
  return engines.some(({ state }) => state === 'slow') ? ['warn', 'Slow'] : ['good', 'Healthy'];
}

function engineText({ engine, node, pingMs }: EngineRow): string {
  const answer = pingMs === null ? 'does not answer' : `answers in ${pingMs} ms`;
  return nodes.size < 2 ? `${engine} ${answer}` : `${engine} ${answer}, according to ${nodeName(node)}`;
}

function Nodes() {
  version.value;
  const all = [...nodes.values()];
  return (
    <Card title="Nodes" aside={<span class="muted">{several(all.length, 'node')}</span>}>
      <PlainTable
        label="Nodes"
        rows={all}
        keyOf={({ id }) => id}
        columns={[
          {
            title: 'Host',
            cell: ({ id, isSelf }) => (
              <>
                {nodeName(id)} {isSelf && <Badge level="accent">this one</Badge>}
              </>
            ),
          },
          { title: 'Version', cell: ({ version: of }) => of },
          { title: 'Started', cell: ({ startedAt }) => <When at={startedAt} /> },
          { title: 'State', cell: ({ conflicts }) => <Agreement conflicts={conflicts} /> },
        ]}
      />
      {all
        .flatMap(({ id, conflicts }) => conflicts.map((conflict) => ({ id, ...conflict })))
        .slice(0, MAX_CONFLICTS)
        .map(({ id, namespace, option, here, there }) => (
          <p key={JSON.stringify([id, namespace, option])} class="body muted">
            {option} of {namespace} is <code>{there}</code> on {nodeName(id)}, and <code>{here}</code> on this
            node.
          </p>
        ))}
    </Card>
  );
}

function Agreement({ conflicts }: Pick<NodeRecord, 'conflicts'>) {
  if (conflicts.length === 0) return <Badge level="good">No conflicts</Badge>;
  return <Badge level="warn">{several(conflicts.length, 'option differs', 'options differ')}</Badge>;
}
