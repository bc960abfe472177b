import type { Arg, Reply } from './connection.ts';

/** One command on its way to a node. */
export interface Call {
  readonly name: string;
  readonly args: readonly Arg[];
  /** It writes: where the node waits for replicas, this one counts only with them. */
  readonly writes: boolean;
  /** The slot is on its way to this node, and the node shall serve it already. */
  readonly asking: boolean;
  /** Sent right behind it on the same connection, whatever becomes of it. Nobody looks at the replies. */
  readonly behind?: readonly Command[];
}

export interface Command {
  readonly name: string;
  readonly args: readonly Arg[];
}

/**
 * How a call ended.
 * - `answered`: done.
 * - `unreplicated`: done here, but too few replicas had it in time.
 * - `refused`: an error reply, in these words.
 * - `lost`: no reply will come. `sent` is false where nothing can have been done.
 */
export type Outcome =
  | { readonly kind: 'answered'; readonly reply: Reply }
  | { readonly kind: 'unreplicated' }
  | { readonly kind: 'refused'; readonly message: string }
  | { readonly kind: 'lost'; readonly sent: boolean };

export const NOT_SENT: Outcome = { kind: 'lost', sent: false };
