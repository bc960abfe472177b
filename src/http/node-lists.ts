import type { SeenSession } from '../access/console-sessions.ts';
import type { User } from '../access/user.ts';
import type { Broker } from '../broker/broker.ts';
import type { Ask } from '../broker/questions.ts';
import { overloaded } from '../model/errors.ts';
import type {
  AuditLine,
  EngineHealth,
  EngineRow,
  NodesList,
  SessionInfo,
  WaitingConsumer,
} from '../model/records.ts';
import { compareStrings } from '../util/compare-strings.ts';
import { ConcurrencyLimit } from '../util/concurrency-limit.ts';
import type { HttpParts } from './options.ts';

/** Maximum number of rows of a list. */
export const MAX_ROWS = 1_000;
/** Maximum size of a node's reply: some thousand rows. */
const MAX_REPLY_BYTES = 262_144;
/** Lists of one user in progress at once. A node that does not reply delays each list by a second. */
const LISTS_PER_USER = 4;
const MAX_WAITING_LISTS = 16;
/** Audit lines in memory; the log has all of them. */
const MAX_AUDIT_LINES = 1_000;

/**
 * The user who requests a list, reduced to what decides which rows are visible, as it is sent to other nodes. Only
 * administrators see namespaces that the requesting node does not serve.
 */
interface ListViewer {
  readonly name: string;
  readonly isAdministrator: boolean;
  /** Whether this is a token with a list of rights, which does not see everything that its owner does. */
  readonly isLimited: boolean;
  readonly manages: readonly string[];
  readonly sees: readonly string[];
}

function manages(viewer: ListViewer, namespace: string): boolean {
  return viewer.isAdministrator || viewer.manages.includes(namespace);
}

function sees(viewer: ListViewer, namespace: string): boolean {
  return viewer.isAdministrator || viewer.sees.includes(namespace);
}

/** Which rows of a list are returned. */
interface RowFilter {
  readonly limit: number;
  /** In lower case; each must be part of one of the row's texts. Null: all rows. */
  readonly words: readonly string[] | null;
}

const ALL_ROWS: RowFilter = { limit: MAX_ROWS, words: null };

interface ListQuestion extends RowFilter {
  readonly viewer: ListViewer;
}

/** A list that was merged from the replies of all nodes. */
interface MergedList<Row extends object> extends NodesList {
  readonly rows: readonly (Row & { readonly node: string })[];
}

/** A consumer that waits, with its queue. */
type QueuedConsumer = Omit<WaitingConsumer, 'node'>;

/** An engine with the namespaces that it serves. */
type NamedEngine = Omit<EngineRow, 'node'>;

interface NodeListParts<Row extends object> {
  readonly name: string;
  /** The rows of this node. @param from id of the node that requests them */
  readonly rows: (viewer: ListViewer, from: string) => readonly Row[] | Promise<readonly Row[]>;
  /** The row as the viewer may see it; empty if it is hidden. */
  readonly visiblePart: (row: Row, viewer: ListViewer) => readonly Row[];
  readonly compare: (a: Row, b: Row) => number;
  /** The values of a row in which the words of a filter are searched; none by default. */
  readonly texts?: (row: Row) => readonly (string | null)[];
}

/**
 * A list of all nodes with rows of one kind. Each node filters its rows by what the viewer may see, so that it sends no
 * others and its limit counts visible rows. The requesting node filters again: it knows the user, and need not trust
 * another node's filter.
 */
class NodeList<Row extends object> {
  readonly #broker: Broker;
  readonly #concurrency: ConcurrencyLimit;
  readonly #parts: NodeListParts<Row>;
  readonly #ask: Ask<ListQuestion, Row>;

  /** @param concurrency limits the lists in progress */
  constructor(broker: Broker, concurrency: ConcurrencyLimit, parts: NodeListParts<Row>) {
    this.#broker = broker;
    this.#concurrency = concurrency;
    this.#parts = parts;
    this.#ask = broker.questions.register<ListQuestion, Row>({
      name: parts.name,
      maxBytes: MAX_REPLY_BYTES,
      reply: async ({ viewer, limit, words }, from) => {
        const rows = (await this.#rowsOf(viewer, from)).filter((row) => this.#hasWords(row, words));
        return { total: rows.length, rows: rows.slice(0, limit) };
      },
    });
  }

  /** The list as a user may see it. @param onlyNamespace rows of this namespace; null: all */
  read(user: User, filter = ALL_ROWS, onlyNamespace: string | null = null): Promise<MergedList<Row>> {
    return this.readAs(() => this.#viewerOf(user, onlyNamespace), filter, user);
  }

  /**
   * @param viewerNow returns the viewer with the present rights: those of a token may change while nodes reply
   * @param caller the user whose limit applies: the lists of one user do not delay another's
   */
  readAs(viewerNow: () => ListViewer, filter: RowFilter, caller: User): Promise<MergedList<Row>> {
    return this.#concurrency.run(caller.name, () => this.#merge(viewerNow, filter));
  }

  #viewerOf(user: User, onlyNamespace: string | null): ListViewer {
    const isAdministrator = onlyNamespace === null && user.isAdministrator;
    const listed = this.#broker
      .namespaces()
      .map(({ name }) => name)
      .filter((name) => !isAdministrator && (onlyNamespace ?? name) === name);
    return {
      name: user.name,
      isAdministrator,
      isLimited: user.token?.isLimited === true,
      manages: listed.filter((name) => user.may('manage', name)),
      sees: listed.filter((name) => user.maySee(name)),
    };
  }

  async #merge(viewerNow: () => ListViewer, { limit, words }: RowFilter): Promise<MergedList<Row>> {
    const { compare, visiblePart } = this.#parts;
    const { nodes, missing } = await this.#ask({ viewer: viewerNow(), limit, words });
    const viewer = viewerNow();
    let total = 0;
    const unreadable: string[] = [];
    const rows = nodes.flatMap((reply) => {
      const { node } = reply;
      try {
        const visible = reply.rows
          .flatMap((row) => visiblePart(row, viewer))
          .filter((row) => this.#hasWords(row, words))
          .map((row) => ({ ...row, node }));
        total += reply.total - reply.rows.length + visible.length;
        return visible;
      } catch {
        // A node of another version may send other rows. List those of the other nodes.
        unreadable.push(node);
        return [];
      }
    });
    rows.sort(compare);
    return {
      node: nodes[0]?.node ?? '',
      missing: [...missing, ...unreadable],
      total,
      rows: rows.slice(0, limit),
    };
  }

  async #rowsOf(viewer: ListViewer, from: string): Promise<Row[]> {
    const { rows, visiblePart, compare } = this.#parts;
    return (await rows(viewer, from)).flatMap((row) => visiblePart(row, viewer)).sort(compare);
  }

  #hasWords(row: Row, words: RowFilter['words']): boolean {
    if (words === null) return true;
    const text = (this.#parts.texts?.(row) ?? []).join('\n').toLowerCase();
    return words.every((word) => text.includes(word));
  }
}

/** The lists for operators, each merged from all nodes. */
export class NodeLists {
  /** Consumers that wait, the longest-waiting first. */
  readonly consumers: NodeList<QueuedConsumer>;
  /** Sessions of STOMP and AMQP, the oldest first. */
  readonly sessions: NodeList<SessionInfo>;
  /** Audited operations, the latest first. */
  readonly audit: NodeList<AuditLine>;
  /** The engines as each node sees them, those of this node first. */
  readonly engines: NodeList<NamedEngine>;
  readonly #consoleSessions: NodeList<SeenSession>;
  /** The last lines of this node's audit log. */
  readonly #auditLines: AuditLine[] = [];

  constructor({ broker, sessions, engines, consoleSessions }: HttpParts) {
    const concurrency = new ConcurrencyLimit({
      perKey: LISTS_PER_USER,
      maxWaiting: MAX_WAITING_LISTS,
      rejection: () =>
        overloaded(
          `Lists of all nodes are made ${LISTS_PER_USER} at a time for each user, and ${MAX_WAITING_LISTS} are waiting; retry later.`,
        ),
    });
    this.consumers = new NodeList(broker, concurrency, {
      name: 'consumers',
      rows: (viewer, from) => waitingFor(broker, viewer, from),
      visiblePart: (consumer, viewer) => (manages(viewer, consumer.ns) ? [consumer] : []),
      compare: bySince,
      texts: ({ ns, queue, group, tid, user, protocol, address }) => [
        ns,
        queue,
        group,
        tid,
        user,
        protocol,
        address,
      ],
    });
    this.sessions = new NodeList(broker, concurrency, {
      name: 'sessions',
      rows: () => sessions?.() ?? [],
      visiblePart: visibleSession,
      compare: bySince,
      texts: ({ id, user, protocol, address, consumers }) => [
        id,
        user,
        protocol,
        address,
        ...consumers.flatMap(({ ns, queue, group }) => [ns, queue, group]),
      ],
    });
    this.audit = new NodeList(broker, concurrency, {
      name: 'audit',
      rows: () => this.#auditLines.toReversed(),
      visiblePart: visibleLine,
      compare: (a, b) => Date.parse(b.at) - Date.parse(a.at),
      texts: ({ user, action, address, namespace, queue, details }) => [
        user,
        action,
        address,
        namespace,
        queue,
        ...Object.values(details).map((value) => JSON.stringify(value)),
      ],
    });
    this.engines = new NodeList(broker, concurrency, {
      name: 'engines',
      rows: async () => withNamespaces(broker, await engines()),
      visiblePart: visibleEngine,
      compare: () => 0,
    });
    this.#consoleSessions = new NodeList(broker, concurrency, {
      name: 'console-sessions',
      rows: ({ name }) => consoleSessions?.seenOf(name) ?? [],
      visiblePart: (session) => [session],
      compare: (a, b) => b.usedAt - a.usedAt,
    });
  }

  /** Adds a line to the audit log of this node. */
  addAuditLine(line: AuditLine): void {
    this.#auditLines.push(line);
    if (this.#auditLines.length > MAX_AUDIT_LINES) this.#auditLines.shift();
  }

  /**
   * The console sessions of a user, the most recently used first. A session that several nodes served is listed once,
   * as the last of them saw it.
   */
  async consoleSessions(caller: User, name: string): Promise<MergedList<SeenSession>> {
    const viewer = { name, isAdministrator: false, isLimited: false, manages: [], sees: [] };
    const list = await this.#consoleSessions.readAs(() => viewer, ALL_ROWS, caller);
    const rows = [...Map.groupBy(list.rows, ({ id }) => id).values()].flatMap((same) => same.slice(0, 1));
    return { ...list, total: list.total - list.rows.length + rows.length, rows };
  }
}

/**
 * The consumers that wait on this node. Another node gets only those in namespaces that both share: a cancel reaches no
 * others, and with SQLite each node has a namespace of its own under the same name.
 */
function waitingFor(broker: Broker, viewer: ListViewer, from: string): QueuedConsumer[] {
  return broker
    .namespaces()
    .filter(({ name }) => manages(viewer, name))
    .filter(
      (namespace) => from === broker.nodeId || namespace.cluster.peers().some(({ info }) => info.id === from),
    )
    .flatMap((namespace) => {
      const ns = namespace.name;
      return [...namespace.waitingOfUsers().keys()].flatMap((queue) =>
        namespace
          .visit(queue)
          .consumers()
          .map((consumer) => ({ ns, queue, ...consumer })),
      );
    });
}

/**
 * Users see their own sessions completely; of other sessions, the consumers in namespaces where they have `manage`. Of
 * its owner's sessions, a limited token sees the consumers in namespaces that it may see.
 */
function visibleSession(session: SessionInfo, viewer: ListViewer): readonly SessionInfo[] {
  const isOwn = session.user === viewer.name;
  if (viewer.isAdministrator || (isOwn && !viewer.isLimited)) return [session];
  const consumers = session.consumers.filter(({ ns }) => (isOwn ? sees(viewer, ns) : manages(viewer, ns)));
  return consumers.length === 0 ? [] : [{ ...session, consumers }];
}

/**
 * Administrators see every line. Other users see their own lines, and those of namespaces where they have `manage`; a
 * limited token sees only the latter.
 */
function visibleLine(line: AuditLine, viewer: ListViewer): readonly AuditLine[] {
  const { user, namespace } = line;
  const isOwn = user === viewer.name && !viewer.isLimited;
  const isShown = viewer.isAdministrator || isOwn || (namespace !== null && manages(viewer, namespace));
  return isShown ? [line] : [];
}

/** An engine's URL is visible to users who may see one of its namespaces. */
function visibleEngine(engine: NamedEngine, viewer: ListViewer): readonly NamedEngine[] {
  const namespaces = engine.namespaces.filter((namespace) => sees(viewer, namespace));
  return namespaces.length === 0 ? [] : [{ ...engine, namespaces }];
}

function withNamespaces(broker: Broker, engines: readonly EngineHealth[]): NamedEngine[] {
  const byEngine = broker.namespacesByEngine();
  return engines.map(({ engine, type, check: _, ...rest }) => ({
    engine,
    type,
    namespaces: byEngine.get(engine) ?? [],
    ...rest,
  }));
}

function bySince(a: { readonly since: string }, b: { readonly since: string }): number {
  return compareStrings(a.since, b.since);
}
