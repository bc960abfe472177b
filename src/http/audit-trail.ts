/** One use of an audited operation that succeeded. */
export interface AuditLine {
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

/** The oldest ones make room: the log has them all. */
const MAX_LINES = 1_000;

/** The last lines of this node's audit log, in memory. */
export class AuditTrail {
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
