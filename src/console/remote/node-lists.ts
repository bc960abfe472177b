/** Common members of lists that cover all nodes. */
export interface OfNodes {
  /** Id of the node that answered. */
  readonly node: string;
  /** Ids of the nodes that did not reply; their rows are missing. */
  readonly missing: readonly string[];
}

/** A list whose length is limited. */
export interface LimitedList extends OfNodes {
  /** Number of rows without the limit. */
  readonly total: number;
}
