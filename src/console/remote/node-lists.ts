/** What a list of all nodes has in addition to its rows. */
export interface OfNodes {
  /** Id of the node that answered. */
  readonly node: string;
  /** Ids of the nodes that did not reply: what they know is not in the list. */
  readonly missing: readonly string[];
}

/** A list whose length is limited. */
export interface LimitedList extends OfNodes {
  /** How many rows there are, also beyond the limit. */
  readonly total: number;
}
