import type { CancelTimer, Clock } from '../util/clock.ts';
import type { EventLog } from '../util/log.ts';
import type { Cluster } from './cluster.ts';

/** One node's reply to a question. */
export interface ReplyRows<Row extends object> {
  /** The number of rows, including those left out of `rows`. */
  readonly total: number;
  readonly rows: readonly Row[];
}

/** A reply with the node that it is from. */
export interface NodeRows<Row extends object> extends ReplyRows<Row> {
  /** Id of the node, as in `/nodes`. */
  readonly node: string;
}

/** The replies of all nodes to a question. */
export interface Gathered<Row extends object> {
  /** This node first. */
  readonly nodes: readonly NodeRows<Row>[];
  /** Ids of the nodes that did not reply in time, or failed to. */
  readonly missing: readonly string[];
  /** The reasons of nodes that failed to reply. */
  readonly failures: readonly NodeFailure[];
}

/** `question-too-long`: no node reads a question of more than 512 KiB. `failed`: the node's log has the error. */
interface NodeFailure {
  /** Id of the node. */
  readonly node: string;
  readonly error: 'question-too-long' | 'failed';
}

interface Question<Params extends object, Row extends object> {
  readonly name: string;
  /** Bytes of JSON of the rows in a reply to another node; further rows are left out. 3,600 bytes cost a signal. */
  readonly maxBytes: number;
  /** This node's reply to itself or to another node. @param from id of the node that asks */
  reply(params: Params, from: string): ReplyRows<Row> | Promise<ReplyRows<Row>>;
}

/**
 * Asks this node and all others.
 * @param within only the nodes of this namespace; omitted: all nodes that share a namespace with this one
 * @throws what the reply of this node throws
 */
export type Ask<Params extends object, Row extends object> = (
  params: Params,
  within?: Cluster,
) => Promise<Gathered<Row>>;

/** Part of a question or of a reply, whose JSON may exceed the length of a signal. */
export interface MessagePart {
  readonly type: 'question' | 'reply';
  /** The question's number, unique on the node that asks. */
  readonly question: number;
  /** The index of this part, from 0, and the number of parts. */
  readonly at: number;
  readonly of: number;
  /** Base64, so that its length in a signal does not depend on the content. */
  readonly text: string;
}

interface QuestionsOptions {
  /** Id of this node. */
  readonly self: string;
  readonly clock: Clock;
  readonly log: EventLog;
  /** The namespaces of this node, in the order of the configuration. */
  readonly channels: () => readonly Cluster[];
}

/** A node that has not replied after this long is missing. */
const REPLY_MS = 1_000;
/** Bytes per part. With ids of nodes and the namespace's name it fits into the 7,800 bytes of a PostgreSQL signal. */
const PART_BYTES = 3_600;
/** Bound on a question: it may contain the names of some thousand namespaces. */
const MAX_QUESTION_BYTES = 524_288;
const MAX_QUESTION_PARTS = maxPartsOf(MAX_QUESTION_BYTES);
/** Bound on the incomplete questions of other nodes; parts of further ones are dropped. */
const MAX_PARTIAL_QUESTIONS = 100;

interface PendingReply {
  readonly channel: Cluster;
  readonly message: PartialMessage;
}

/** A question of this node that still awaits replies. */
interface PendingQuestion {
  /** By the id of the node. */
  readonly awaited: Map<string, PendingReply>;
  readonly replies: Map<string, ReplyRows<object>>;
  readonly failures: NodeFailure[];
  readonly done: () => void;
}

interface WireQuestion {
  readonly name: string;
  readonly params: object;
}

/**
 * Questions between nodes, for listings that cover all of them and for changes that all of them apply. A question is a
 * signal, which may be lost: a node that does not reply within a second is reported as missing, and the replies of the
 * others are returned.
 */
export class Questions {
  readonly #options: QuestionsOptions;
  readonly #questions = new Map<string, Question<object, object>>();
  readonly #pending = new Map<number, PendingQuestion>();
  /** Incomplete questions of other nodes, by node and number. */
  readonly #partial = new Map<string, { readonly message: PartialMessage; readonly cancel: CancelTimer }>();
  #lastQuestion = 0;
  #isStopped = false;

  constructor(options: QuestionsOptions) {
    this.#options = options;
  }

  /**
   * Registers a question on this node, and returns a function that asks it. Every node registers all questions, so that
   * each can ask and reply.
   */
  register<Params extends object, Row extends object>(question: Question<Params, Row>): Ask<Params, Row> {
    const { name } = question;
    if (this.#questions.has(name)) throw new Error(`The question ${name} is registered already.`);
    this.#questions.set(name, question as unknown as Question<object, object>);
    const { self } = this.#options;
    return async (params, within) => {
      const asking = this.#askOthers({ name, params }, question.maxBytes, within);
      const ownReply = await question.reply(params, self);
      const { replies, missing, failures } = await asking;
      const others = [...replies].map(([node, reply]) => ({ node, ...(reply as ReplyRows<Row>) }));
      return { nodes: [{ node: self, ...ownReply }, ...others], missing, failures };
    };
  }

  /** Ends the questions of this node: their callers get the replies that have arrived. */
  stop(): void {
    this.#isStopped = true;
    for (const { done } of [...this.#pending.values()]) done();
    for (const { cancel } of this.#partial.values()) cancel();
    this.#partial.clear();
  }

  /** Handles part of a question or reply from another node. */
  onMessage(channel: Cluster, from: string, part: MessagePart): void {
    if (this.#isStopped) return;
    if (part.type === 'question') this.#onQuestion(channel, from, part);
    else this.#onReply(channel, from, part);
  }

  /** Another node stops: questions no longer wait for it, and it does not count as missing. */
  onGone(node: string): void {
    for (const { awaited, done } of [...this.#pending.values()]) {
      if (awaited.delete(node) && awaited.size === 0) done();
    }
  }

  async #askOthers(
    question: WireQuestion,
    maxBytes: number,
    within: Cluster | undefined,
  ): Promise<
    Pick<Gathered<object>, 'missing' | 'failures'> & {
      readonly replies: ReadonlyMap<string, ReplyRows<object>>;
    }
  > {
    const awaited = new Map<string, PendingReply>();
    // Each node is asked once, through the first namespace that it shares with this one.
    for (const channel of within === undefined ? this.#options.channels() : [within]) {
      for (const { info } of channel.peers()) {
        if (!awaited.has(info.id))
          awaited.set(info.id, { channel, message: new PartialMessage(maxPartsOf(maxBytes)) });
      }
    }
    if (awaited.size === 0 || this.#isStopped) return { replies: new Map(), missing: [], failures: [] };
    const parts = partsOf(question);
    if (parts.length > MAX_QUESTION_PARTS) {
      const missing = [...awaited.keys()];
      const failures = missing.map((node) => ({ node, error: 'question-too-long' }) as const);
      this.#options.log.warn(
        { question: question.name, nodes: missing },
        'a question was too long to be sent to other nodes',
      );
      return { replies: new Map(), missing, failures };
    }
    this.#lastQuestion += 1;
    const number = this.#lastQuestion;
    const { promise, resolve: done } = Promise.withResolvers<void>();
    const replies = new Map<string, ReplyRows<object>>();
    const failures: NodeFailure[] = [];
    this.#pending.set(number, { awaited, replies, failures, done });
    const cancel = this.#options.clock.after(REPLY_MS, done);
    const byChannel = Map.groupBy(awaited, ([, { channel }]) => channel);
    for (const [channel, nodes] of byChannel) {
      const to = nodes.map(([id]) => id);
      for (const part of parts) channel.send(to, { type: 'question', question: number, ...part });
    }
    await promise;
    cancel();
    this.#pending.delete(number);
    return { replies, missing: [...awaited.keys(), ...failures.map(({ node }) => node)], failures };
  }

  #onQuestion(channel: Cluster, from: string, part: MessagePart): void {
    if (part.of > MAX_QUESTION_PARTS) {
      // The node's version allows longer questions. Reply once, not to each part.
      if (part.at === 0) this.#send(channel, from, part.question, { error: 'question-too-long' });
      return;
    }
    const key = JSON.stringify([from, part.question]);
    let partial = this.#partial.get(key);
    if (partial === undefined) {
      if (this.#partial.size >= MAX_PARTIAL_QUESTIONS) return;
      // Later than this, the node no longer waits for the reply.
      const cancel = this.#options.clock.after(REPLY_MS, () => this.#partial.delete(key));
      partial = { message: new PartialMessage(MAX_QUESTION_PARTS), cancel };
      this.#partial.set(key, partial);
    }
    const question = partial.message.add(part);
    if (question === null) return;
    partial.cancel();
    this.#partial.delete(key);
    void this.#replyToNode(channel, from, part.question, question as WireQuestion);
  }

  #onReply(channel: Cluster, from: string, part: MessagePart): void {
    const pending = this.#pending.get(part.question);
    const reply = pending?.awaited.get(from);
    if (pending === undefined || reply?.channel !== channel) return;
    const whole = reply.message.add(part);
    if (whole === null) return;
    const { total, rows, error } = whole as Partial<ReplyRows<object> & NodeFailure>;
    if (typeof total === 'number' && Array.isArray(rows)) pending.replies.set(from, { total, rows });
    else pending.failures.push({ node: from, error: error === 'question-too-long' ? error : 'failed' });
    pending.awaited.delete(from);
    if (pending.awaited.size === 0) pending.done();
  }

  /** Replies to a question. A failure is reported as well, so that the other node need not wait for the timeout. */
  async #replyToNode(
    channel: Cluster,
    to: string,
    number: number,
    { name, params }: WireQuestion,
  ): Promise<void> {
    const question = this.#questions.get(name);
    let reply: object = { error: 'failed' };
    try {
      if (question !== undefined) {
        const { total, rows } = await question.reply(params, to);
        reply = { total, rows: upToBytes(rows, question.maxBytes) };
      }
    } catch (error) {
      this.#options.log.warn({ err: error, question: name, node: to }, 'a question of another node failed');
    }
    if (!this.#isStopped) this.#send(channel, to, number, reply);
  }

  #send(channel: Cluster, to: string, question: number, reply: object): void {
    for (const part of partsOf(reply)) channel.send([to], { type: 'reply', question, ...part });
  }
}

function partsOf(message: object): Pick<MessagePart, 'at' | 'of' | 'text'>[] {
  const bytes = Buffer.from(JSON.stringify(message));
  const of = Math.ceil(bytes.length / PART_BYTES);
  return Array.from({ length: of }, (_, at) => {
    return { at, of, text: bytes.subarray(at * PART_BYTES, (at + 1) * PART_BYTES).toString('base64') };
  });
}

/** One part more than the rows need, for the JSON around them. */
function maxPartsOf(maxBytes: number): number {
  return Math.ceil(maxBytes / PART_BYTES) + 1;
}

/** The parts of one message, which may arrive in any order. */
class PartialMessage {
  readonly #maxParts: number;
  readonly #parts = new Map<number, string>();

  constructor(maxParts: number) {
    this.#maxParts = maxParts;
  }

  /**
   * Adds a part, and returns the message once it is complete. Null until then, and if the message is too long or
   * invalid, as one of another version may be.
   */
  add({ at, of, text }: MessagePart): object | null {
    if (of > this.#maxParts || at < 0 || at >= of) return null;
    this.#parts.set(at, text);
    if (this.#parts.size < of) return null;
    const bytes = Array.from({ length: of }, (_, i) => Buffer.from(this.#parts.get(i) ?? '', 'base64'));
    try {
      const message: unknown = JSON.parse(Buffer.concat(bytes).toString());
      return typeof message === 'object' ? message : null;
    } catch {
      return null;
    }
  }
}

/** The first rows, up to `maxBytes` of JSON. */
function upToBytes<Row extends object>(rows: readonly Row[], maxBytes: number): Row[] {
  let bytes = 0;
  const end = rows.findIndex((row) => {
    bytes += Buffer.byteLength(JSON.stringify(row)) + 1;
    return bytes > maxBytes;
  });
  return end === -1 ? [...rows] : rows.slice(0, end);
}
