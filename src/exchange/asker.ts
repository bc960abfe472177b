/** Who asks for something about exchanges: a user, whose other requests wait for it, and who may not see all. */
export interface Asker {
  readonly name: string;
  /** Exchanges are known to who may see the namespace of their source. */
  maySee(namespace: string): boolean;
}

/** The node itself, which sees all. No user has an empty name. */
export const NODE: Asker = { name: '', maySee: () => true };
