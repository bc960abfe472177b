import { nodeRecord } from '../../events/pictures.ts';
import { invalidParameter } from '../../model/errors.ts';
import {
  AuditLines,
  BackupReport,
  Engines,
  NodeRecord,
  Sessions,
  WaitingConsumers,
} from '../../model/records.ts';
import { namedObject, Type } from '../../util/schema.ts';
import type { HttpCall } from '../call.ts';
import { MAX_ROWS } from '../node-lists.ts';
import { NODE_CHECK, type ReadyReport } from '../options.ts';
import { flag, nameOf, type QueryParameter, wholeNumber } from '../parameters.ts';
import { json, type Route, route } from '../route.ts';

const Live = namedObject('Live', { status: Type.Literal('live') });

const Nodes = Type.Array(NodeRecord);

const Readiness = namedObject('Readiness', {
  status: Type.Union([Type.Literal('ready'), Type.Literal('not ready')]),
  checks: Type.Optional(Type.Record(Type.String())),
  nodes: Type.Optional(Nodes),
});

/** The viewer of metrics that need no login. */
const EVERYBODY = { may: () => true, maySee: () => true };
const METRICS_TYPE = 'text/plain; version=0.0.4; charset=utf-8';

const plainFlag = flag('Shows the nodes that share namespaces with this one. Without a value: yes.');
/** Operators write `?verbose`, so an empty value means yes. */
const verbose: QueryParameter<boolean> = {
  ...plainFlag,
  read: (name, value) => value === '' || plainFlag.read(name, value),
};

const backupName: QueryParameter<string | null> = {
  description: 'Name of the backup and of its folder; defaults to the time.',
  schema: Type.String({ pattern: '^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$' }),
  fallback: null,
  // Validated by `backUp`, which makes a path of it.
  read: (_name, value) => value,
};

/** Routes for operators: liveness, readiness, metrics, backups, sessions and the audit trail. */
export function operatorRoutes(metricsWithoutLogin: boolean): readonly Route[] {
  return [
    route({
      id: 'backUp',
      methods: ['POST'],
      path: '/backup',
      summary: 'Back up every SQLite file, while it is used, to a new folder in the backup folder',
      access: 'administrator',
      isAudited: true,
      query: { name: backupName },
      responses: [json('It is complete and on disk.', BackupReport, { status: 201 })],
      problems: ['backup-conflict', 'storage-full', 'storage-unavailable', 'shutting-down'],
      async handle(call, query) {
        const report = await call.front.parts.backUp(query.name);
        call.auditFields = { name: report.name };
        call.sendText(201, JSON.stringify(report));
      },
    }),
    route({
      id: 'live',
      path: '/livez',
      summary: 'Whether the process is running',
      access: 'open',
      responses: [json('It is running.', Live)],
      handle: (call) => call.sendJson({ status: 'live' }),
    }),
    route({
      id: 'ready',
      path: '/readyz',
      summary: 'Whether this node is ready for requests; an authenticated user sees each part',
      access: 'open',
      responses: [
        json('It is ready.', Readiness),
        json('It is stopping, or an engine is unavailable.', Readiness, {
          status: 503,
          headers: { 'retry-after': 'Seconds.' },
        }),
      ],
      query: { verbose },
      async handle(call, query) {
        const report = await call.front.parts.ready();
        const isReady = report.ready && !call.front.isClosing;
        const status = isReady ? 'ready' : 'not ready';
        const summary =
          call.login === null ? { status } : { status, checks: visibleChecks(call, report.checks) };
        const nodes = query.verbose && call.login !== null ? { nodes: visibleNodes(call) } : {};
        call.sendText(
          isReady ? 200 : 503,
          JSON.stringify({ ...summary, ...nodes }),
          isReady ? [] : ['retry-after', '1'],
        );
      },
    }),
    route({
      id: 'listNodes',
      path: '/nodes',
      summary: 'List the nodes that share namespaces with this one, itself included, the oldest first',
      access: 'user',
      responses: [json('The nodes, without those that have been silent for 7 s.', Nodes)],
      handle: (call) => call.sendJson(visibleNodes(call)),
    }),
    route({
      id: 'listEngines',
      path: '/engines',
      summary: 'List the engines as each node sees them: whether each replies, and how much space it has',
      access: 'user',
      responses: [json('Those that serve a namespace which the user may see.', Engines)],
      async handle(call) {
        const { rows, ...list } = await call.front.nodeLists.engines.read(call.user);
        call.sendJson({ ...list, engines: rows } satisfies Engines);
      },
    }),
    route({
      id: 'metrics',
      path: '/metrics',
      summary: 'Counters and gauges in the Prometheus text format',
      access: metricsWithoutLogin ? 'open' : 'user',
      responses: [{ status: 200, description: 'The metrics.', contentType: METRICS_TYPE }],
      async handle(call) {
        const viewer = metricsWithoutLogin ? EVERYBODY : call.user;
        call.sendText(200, await call.front.parts.metricsText(viewer), [], METRICS_TYPE);
      },
    }),
    route({
      id: 'waitingConsumers',
      path: '/consumers',
      summary: 'List the blocked get and reserve calls of all nodes and queues, the longest first',
      access: 'user',
      query: {
        ns: nameOf('namespace', 'Only in this namespace; defaults to all where the user has `manage`.'),
        filter,
        limit,
      },
      responses: [json('The calls.', WaitingConsumers)],
      problems: ['invalid-name'],
      async handle(call, { ns, filter: words, limit }) {
        const { rows, ...list } = await call.front.nodeLists.consumers.read(call.user, { limit, words }, ns);
        call.sendJson({ ...list, consumers: rows } satisfies WaitingConsumers);
      },
    }),
    route({
      id: 'sessions',
      path: '/sessions',
      summary: 'List the STOMP and AMQP sessions of all nodes, with their consumers, the longest first',
      access: 'user',
      query: { filter, limit },
      responses: [json('The sessions.', Sessions)],
      async handle(call, { filter: words, limit }) {
        const { rows, ...list } = await call.front.nodeLists.sessions.read(call.user, { limit, words });
        call.sendJson({ ...list, sessions: rows } satisfies Sessions);
      },
    }),
    route({
      id: 'audit',
      path: '/audit',
      summary:
        'Read who changed what: the last thousand lines of the audit log of each node, the latest first',
      access: 'user',
      query: { filter, limit },
      responses: [json('Those that the user may see.', AuditLines)],
      async handle(call, { filter: words, limit }) {
        const { rows, ...list } = await call.front.nodeLists.audit.read(call.user, { limit, words });
        call.sendJson({ ...list, lines: rows } satisfies AuditLines);
      },
    }),
  ];
}

/**
 * The checks of the node itself, and of engines with a namespace that the user may see: a URL reveals where it is
 * stored.
 */
function visibleChecks({ user, front }: HttpCall, checks: ReadyReport['checks']): ReadyReport['checks'] {
  const byEngine = front.parts.broker.namespacesByEngine();
  const isShown = (part: string): boolean =>
    part === NODE_CHECK || byEngine.get(part)?.some((name) => user.maySee(name)) === true;
  return Object.fromEntries(Object.entries(checks).filter(([part]) => isShown(part)));
}

/** The nodes, each with those of its namespaces that the user may see. */
function visibleNodes(call: HttpCall): NodeRecord[] {
  return call.front.parts.broker.nodes().map((node) => nodeRecord(node, call.user));
}

/** Maximum number of words of a filter: each of them is searched in each row. */
const MAX_WORDS = 16;

const filter: QueryParameter<readonly string[] | null> = {
  description:
    'Only rows that contain each of these words, in a name, an address or another text; letter case does not matter.',
  schema: Type.String(),
  fallback: null,
  read(name, value) {
    const words = value.toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length <= MAX_WORDS) return words;
    throw invalidParameter(name, `${name} has ${words.length} words. Allowed: up to ${MAX_WORDS}.`);
  },
};

const limit = wholeNumber('Maximum number of rows.', { from: 1, to: MAX_ROWS, unit: 'a count' }, MAX_ROWS);
