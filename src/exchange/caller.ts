/** On whose behalf something about exchanges is requested. */
export interface Caller {
  readonly name: string;
  /** Exchanges are visible to those who may see the namespace of their source. */
  maySee(namespace: string): boolean;
}

/** The node itself, which sees all. No user has an empty name. */
export const NODE: Caller = { name: '', maySee: () => true };
