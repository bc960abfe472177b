import type { SeenSession } from '../access/console-sessions.ts';
import type { User } from '../access/user.ts';
import type { Broker } from '../broker/broker.ts';
import type { PendingConsumer, SessionInfo } from '../broker/consumer.ts';
import type { Ask } from '../broker/questions.ts';
import { QuaysideError } from '../model/errors.ts';
import { ConcurrencyLimit } from '../util/concurrency-limit.ts';
import type { EngineReport, HttpParts } from './options.ts';

/** The most rows of a list. */
export const MAX_ROWS = 1_000;
/** Some thousand rows of a node. */
const MAX_REPLY_BYTES = 262_144;
/** A node that does not reply makes each list wait for a second. */
const LISTS_PER_USER = 4;
const MAX_WAITING_LISTS = 16;

/** The user for whom a list is made, as far as it decides which rows are in it. */
interface ListViewer {
  readonly name: string;
  readonly isAdministrator: boolean;
  /** A token with a list of rights: what its owner did elsewhere is not for it. */
  readonly isLimited: boolean;
  manages(namespace: string): boolean;
  sees(namespace: string): boolean;
}

/** A viewer in a question. Namespaces that the node which asks does not serve are an administrator's alone. */
interface ViewerRights {
  readonly name: string;
  readonly isAdministrator: boolean;
  /** Not given by nodes of an earlier version. */
  readonly isLimited?: boolean;
  readonly manages: readonly string[];
  readonly sees: readonly string[];
}

interface ListQuestion {
  readonly viewer: ViewerRights;
  readonly limit: number;
}

/** A list as all nodes made it together. */
interface ListOfNodes<Row extends object> {
  /** Id of the node that answers. */
  readonly node: string;
  /** Ids of the nodes that did not reply. */
  readonly missing: readonly string[];
  /** How many rows there are, also beyond the limit. */
  readonly total: number;
  readonly rows: readonly (Row & { readonly node: string })[];
}

/** A consumer that waits, with its queue. */
interface QueuedConsumer extends PendingConsumer {
  readonly ns: string;
  readonly queue: string;
}

/** An engine with the namespaces that it serves. */
interface NamedEngine extends EngineReport {
  readonly namespaces: readonly string[];
}

interface NodeListParts<Row extends object> {
  readonly name: string;
  /** The rows of this node. @param from id of the node that asks */
  readonly rows: (viewer: ListViewer, from: string) => readonly Row[] | Promise<readonly Row[]>;
  /** What a viewer sees of a row; none: nothing. */
  readonly shown: (row: Row, viewer: ListViewer) => readonly Row[];
  readonly compare: (a: Row, b: Row) => number;
}

/** The user as a viewer of lists. @param only rows of this namespace; null: all */
function viewerOf(user: User, only: string | null): ListViewer {
  const isListed = (namespace: string): boolean => only === null || namespace === only;
  return {
    name: user.name,
    isAdministrator: only === null && user.isAdministrator,
    isLimited: user.token?.isLimited === true,
    manages: (namespace) => isListed(namespace) && user.may('manage', namespace),
    sees: (namespace) => isListed(namespace) && user.maySee(namespace),
  };
}

/**
 * Rows of one kind of all nodes. Each node leaves out what the viewer may not see, so that it sends nothing else and
 * its limit is one of visible rows. The node that asks does so again: it knows the user, and need not trust the rights
 * that another node applied.
 */
class NodeList<Row extends object> {
  readonly #broker: Broker;
  readonly #running: ConcurrencyLimit;
  readonly #parts: NodeListParts<Row>;
  readonly #ask: Ask<ListQuestion, Row>;

  /** @param running lists that are being made */
  constructor(broker: Broker, running: ConcurrencyLimit, parts: NodeListParts<Row>) {
    this.#broker = broker;
    this.#running = running;
    this.#parts = parts;
    this.#ask = broker.questions.register<ListQuestion, Row>({
      name: parts.name,
      maxBytes: MAX_REPLY_BYTES,
      reply: async ({ viewer, limit }, from) => {
        const rows = await this.#rowsOf(viewerWith(viewer), from);
        return { total: rows.length, rows: rows.slice(0, limit) };
      },
    });
  }

  /** What a user sees of it. @param only rows of this namespace; null: all */
  read(user: User, limit = MAX_ROWS, only: string | null = null): Promise<ListOfNodes<Row>> {
    return this.readAs(viewerOf(user, only), limit, user);
  }

  /** @param caller the user who asks for it: the lists of one user do not delay another's */
  readAs(viewer: ListViewer, limit: number, caller: User): Promise<ListOfNodes<Row>> {
    return this.#running.run(caller.name, () => this.#make(viewer, limit));
  }

  async #make(viewer: ListViewer, limit: number): Promise<ListOfNodes<Row>> {
    const { compare, shown } = this.#parts;
    const namespaces = this.#broker.namespaces().map(({ name }) => name);
    const { nodes, missing } = await this.#ask({ viewer: rightsOf(viewer, namespaces), limit });
    let total = 0;
    const unreadable: string[] = [];
    const rows = nodes.flatMap((reply) => {
      const { node } = reply;
      try {
        const visible = reply.rows.flatMap((row) => shown(row, viewer)).map((row) => ({ ...row, node }));
        total += reply.total - reply.rows.length + visible.length;
        return visible;
      } catch {
        // A node of another version may have other rows: the rest of the list is valid without it.
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
    const { rows, shown, compare } = this.#parts;
    return (await rows(viewer, from)).flatMap((row) => shown(row, viewer)).sort(compare);
  }
}

/** The lists of operators, each of all nodes. */
export class NodeLists {
  /** Calls that wait, the longest first. */
  readonly consumers: NodeList<QueuedConsumer>;
  /** Sessions of STOMP and AMQP, the longest first. */
  readonly sessions: NodeList<SessionInfo>;
  /** Who changed what, the latest first. */
  readonly audit: NodeList<AuditLine>;
  /** The engines as each node sees them, those of this node first. */
  readonly engines: NodeList<NamedEngine>;
  readonly #consoleSessions: NodeList<SeenSession>;
  readonly #auditTrail = new AuditTrail();

  constructor({ broker, sessions, engines, consoleSessions }: HttpParts) {
    const running = new ConcurrencyLimit({
      perKey: LISTS_PER_USER,
      maxWaiting: MAX_WAITING_LISTS,
      rejection: () =>
        new QuaysideError(
          'overloaded',
          `Lists of all nodes are made ${LISTS_PER_USER} at a time for each user, and ${MAX_WAITING_LISTS} are waiting; retry later.`,
        ),
    });
    this.consumers = new NodeList(broker, running, {
      name: 'consumers',
      rows: (viewer, from) => waitingFor(broker, viewer, from),
      shown: (consumer, viewer) => (viewer.manages(consumer.ns) ? [consumer] : []),
      compare: bySince,
    });
    this.sessions = new NodeList(broker, running, {
      name: 'sessions',
      rows: () => sessions?.() ?? [],
      shown: shownSession,
      compare: bySince,
    });
    this.audit = new NodeList(broker, running, {
      name: 'audit',
      rows: () => this.#auditTrail.lines(),
      shown: shownLine,
      compare: (a, b) => Date.parse(b.at) - Date.parse(a.at),
    });
    this.engines = new NodeList(broker, running, {
      name: 'engines',
      rows: async () => withNamespaces(broker, await engines()),
      shown: shownEngine,
      compare: () => 0,
    });
    this.#consoleSessions = new NodeList(broker, running, {
      name: 'console-sessions',
      rows: ({ name }) => consoleSessions?.seenOf(name) ?? [],
      shown: (session) => [session],
      compare: (a, b) => b.usedAt - a.usedAt,
    });
  }

  /** Keeps a line of the audit log of this node. */
  noteAudit(line: AuditLine): void {
    this.#auditTrail.add(line);
  }

  /**
   * The sessions of the console of a user, the latest used first; one that several nodes have served as the last of
   * them saw it.
   */
  async consoleSessions(caller: User, name: string): Promise<ListOfNodes<SeenSession>> {
    const viewer = {
      name,
      isAdministrator: false,
      isLimited: false,
      manages: () => false,
      sees: () => false,
    };
    const list = await this.#consoleSessions.readAs(viewer, MAX_ROWS, caller);
    const rows = [...Map.groupBy(list.rows, ({ id }) => id).values()].flatMap((same) => same.slice(0, 1));
    return { ...list, total: list.total - list.rows.length + rows.length, rows };
  }
}

function rightsOf(viewer: ListViewer, namespaces: readonly string[]): ViewerRights {
  const { name, isAdministrator, isLimited } = viewer;
  return {
    name,
    isAdministrator,
    ...(isLimited && { isLimited }),
    manages: isAdministrator ? [] : namespaces.filter((namespace) => viewer.manages(namespace)),
    sees: isAdministrator ? [] : namespaces.filter((namespace) => viewer.sees(namespace)),
  };
}

function viewerWith({ name, isAdministrator, isLimited = false, manages, sees }: ViewerRights): ListViewer {
  return {
    name,
    isAdministrator,
    isLimited,
    manages: (namespace) => isAdministrator || manages.includes(namespace),
    sees: (namespace) => isAdministrator || sees.includes(namespace),
  };
}

/**
 * The consumers that wait on this node. For another node in the namespaces that both serve: a cancel reaches no others,
 * and of those on SQLite each node has its own, though their names are the same.
 */
function waitingFor(broker: Broker, viewer: ListViewer, from: string): QueuedConsumer[] {
  return broker
    .namespaces()
    .filter(({ name }) => viewer.manages(name))
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
 * Users see their own sessions whole; of others, consumers in namespaces where they have `manage`. A limited token sees
 * of its owner's the consumers in namespaces that it may see.
 */
function shownSession(session: SessionInfo, viewer: ListViewer): readonly SessionInfo[] {
  const isOwn = session.user === viewer.name;
  if (viewer.isAdministrator || (isOwn && !viewer.isLimited)) return [session];
  const consumers = session.consumers.filter(({ ns }) => (isOwn ? viewer.sees(ns) : viewer.manages(ns)));
  return consumers.length === 0 ? [] : [{ ...session, consumers }];
}

/**
 * Administrators see everything; others what they did, and what they might have done, too; a limited token the latter
 * alone.
 */
function shownLine(line: AuditLine, viewer: ListViewer): readonly AuditLine[] {
  const { user, namespace } = line;
  const isOwn = user === viewer.name && !viewer.isLimited;
  const isShown = viewer.isAdministrator || isOwn || (namespace !== null && viewer.manages(namespace));
  return isShown ? [line] : [];
}

/** A URL shows where namespaces are: it is for those who may see one of them. */
function shownEngine(engine: NamedEngine, viewer: ListViewer): readonly NamedEngine[] {
  const namespaces = engine.namespaces.filter((namespace) => viewer.sees(namespace));
  return namespaces.length === 0 ? [] : [{ ...engine, namespaces }];
}

function withNamespaces(broker: Broker, engines: readonly EngineReport[]): NamedEngine[] {
  const byEngine = broker.namespacesByEngine();
  return engines.map(({ engine, type, ...rest }) => ({
    engine,
    type,
    namespaces: byEngine.get(engine) ?? [],
    ...rest,
  }));
}

function bySince(a: { readonly since: string }, b: { readonly since: string }): number {
  return Date.parse(a.since) - Date.parse(b.since);
}

/** One use of an audited operation that succeeded. */
interface AuditLine {
  /** ISO 8601. */
  readonly at: string;
  readonly user: string;
  /** The id of the operation, such as `pause`. */
  readonly action: string;
  readonly address: string;
  readonly namespace: string | null;
  readonly queue: string | null;
  /** The other parameters of the path, such as the id of an exchange, and what the operation says of its result. */
  readonly details: Readonly<Record<string, unknown>>;
}

/** The oldest lines are dropped; the log has all of them. */
const MAX_LINES = 1_000;

/** The last lines of this node's audit log, in memory. */
class AuditTrail {
  readonly #lines: AuditLine[] = [];

  add(line: AuditLine): void {
    this.#lines.push(line);
    if (this.#lines.length > MAX_LINES) this.#lines.shift();
  }

  /** The latest first. */
  lines(): readonly AuditLine[] {
    return this.#lines.toReversed();
  }
}
