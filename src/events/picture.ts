import type { User } from '../access/user.ts';

/** What events are about. */
export const EVENT_KINDS = ['queues', 'exchanges', 'nodes', 'operations', 'alarms'] as const;
export type EventKind = (typeof EVENT_KINDS)[number];

/** What decides about what somebody is shown. Two viewers with the same rights in every namespace are shown the same. */
export type EventViewer = Pick<User, 'name' | 'may' | 'maySee'>;

/** A namespace, or one of its queues, that a picture is about. */
export interface PicturePlace {
  readonly ns: string;
  /** Null: the namespace as a whole. */
  readonly queue: string | null;
}

/** What holds now of one queue, exchange, node, operation or alarm. A new picture of the same key replaces it. */
export interface Picture {
  readonly kind: EventKind;
  /** Unique among those of its kind. */
  readonly key: string;
  /** For filters by namespace and queue. */
  readonly places: readonly PicturePlace[];
  /** Differs from the one before if there is something new to show. */
  readonly state: string;
  isFor(viewer: EventViewer): boolean;
  /** As JSON, an object. */
  json(viewer: EventViewer): string;
  /** The same once it is gone: what names it, and `"gone": true`. */
  goneJson(viewer: EventViewer): string;
}

/**
 * Makes pictures of one kind. It is read every two seconds, and when it says that something changed, while somebody
 * listens; otherwise it rests.
 */
export interface PictureSource {
  readonly kind: EventKind;
  /** All pictures that hold now. If it rejects, those of before stay. */
  read(): Promise<Iterable<Picture>> | Iterable<Picture>;
  /** Calls `onChange` when there is something new; null: nobody listens any more. */
  follow?(onChange: (() => void) | null): void;
}

/** What a subscriber wants to know of. */
export interface EventFilter {
  readonly kinds: ReadonlySet<EventKind>;
  /** Null: all. */
  readonly ns: string | null;
  /** Null: all. */
  readonly queue: string | null;
}

export function isWanted({ kind, places }: Picture, { kinds, ns, queue }: EventFilter): boolean {
  if (!kinds.has(kind)) return false;
  if (ns === null) return true;
  return places.some(
    (place) => place.ns === ns && (queue === null || place.queue === null || place.queue === queue),
  );
}
