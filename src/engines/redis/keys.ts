import type { DefinitionKind } from '../../engine/definitions.ts';
import type { QueueKey } from '../../model/names.ts';

/** The keys of a queue: see `library/queue.lua`. */
interface QueueKeys {
  readonly hash: string;
  readonly order: string;
  readonly stats: string;
}

// Characters that could end a hash tag, separate two names or begin an escape.
const SPECIAL = /[%{}/:]/g;
/** The key of such a namespace's names would be `due` or `tidy` of an engine whose prefix ends with `:queues`. */
const RESERVED_NAMES = /^(due|tidy)$/;

/**
 * Names of keys. All keys of a queue have its namespace and name as their hash tag, so they share a slot on a cluster.
 * Names are escaped: no name can move a queue to another slot or collide with the keys of another queue.
 */
export class Keys {
  readonly #prefix: string;
  /** Distinguishes the channels of a database: all databases of a server share their channels. */
  readonly #channelSuffix: string;

  /** @param prefix the beginning of all keys and channels, without braces */
  constructor(prefix: string, db = 0) {
    this.#prefix = prefix;
    this.#channelSuffix = db === 0 ? '' : `@${db}`;
  }

  queue(queue: QueueKey): QueueKeys {
    const base = this.#base(queue);
    return { hash: `${base}:h`, order: `${base}:z`, stats: `${base}:s` };
  }

  /** A list of the `list` variant. */
  list(queue: QueueKey): string {
    return `${this.#base(queue)}:l`;
  }

  /** A dedup key of the `list` variant. */
  listDedup(queue: QueueKey, key: string): string {
    return `${this.#base(queue)}:k:${key}`;
  }

  /** Exists for a while after a queue of the `list` variant was dropped: earlier dedup keys are void. */
  listDropped(queue: QueueKey): string {
    return `${this.#base(queue)}:d`;
  }

  /** The part that all keys of a queue have in common. */
  #base(queue: QueueKey): string {
    return `${this.#prefix}:{${queueText(queue)}}`;
  }

  /** Names of the known queues of a namespace, by when they were last used. */
  names(ns: string): string {
    return `${this.#prefix}:queues:${escaped(ns).replace(RESERVED_NAMES, '%$1')}`;
  }

  /** Queues in which a lease or an element may expire, or retention may apply, by when to sweep them. */
  get due(): string {
    return `${this.#prefix}:due`;
  }

  /** Queues that need housekeeping, by when. */
  get tidy(): string {
    return `${this.#prefix}:tidy`;
  }

  definitions(kind: DefinitionKind): string {
    return `${this.#prefix}:definitions:${kind}`;
  }

  /** The channel on which changed definitions are published. */
  definitionChannel(kind: DefinitionKind): string {
    return `${this.#prefix}:changed${this.#channelSuffix}:${kind}`;
  }

  signalChannel(topic: string): string {
    return `${this.#prefix}:signal${this.#channelSuffix}:${escaped(topic)}`;
  }
}

function escaped(name: string): string {
  return name.replace(SPECIAL, (character) => encodeURIComponent(character));
}

/** A cache by object: callers use one object for all calls of a queue. */
const fullNames = new WeakMap<QueueKey, string>();

/** A queue's full name as one string without zero bytes: namespace, slash and name, both escaped. */
export function queueText(queue: QueueKey): string {
  let text = fullNames.get(queue);
  if (text === undefined) {
    text = `${escaped(queue.ns)}/${escaped(queue.name)}`;
    fullNames.set(queue, text);
  }
  return text;
}

export function parseQueueText(text: string): QueueKey {
  const slash = text.indexOf('/');
  return { ns: unescaped(text.slice(0, slash)), name: unescaped(text.slice(slash + 1)) };
}

function unescaped(text: string): string {
  return text.replace(/%[0-9A-F]{2}/g, (code) => decodeURIComponent(code));
}
