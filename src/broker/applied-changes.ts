import type { DefinitionKind } from '../engine/definitions.ts';
import type { Namespace } from './namespace.ts';
import type { Ask, Questions, ReplyRows } from './questions.ts';

interface ChangedDefinition {
  readonly kind: DefinitionKind;
  /** The namespace in whose engine the definition is stored. */
  readonly ns: string;
  readonly key: string;
}

/** Reads a definition of one kind again, and applies it. @throws as `Definitions.get` */
type ReadDefinition = (ns: string, key: string) => Promise<unknown>;

/** The node that asks needs to know only that this one has replied. */
const NO_ROWS: ReplyRows<never> = { total: 0, rows: [] };
const MAX_REPLY_BYTES = 3_600;

/**
 * Waits until the other nodes have applied a change. They learn of it by a signal, which on PostgreSQL arrives some 30
 * ms after the change is stored: a client whose next request reaches another node would still see the state before.
 */
export class AppliedChanges {
  readonly #readers = new Map<DefinitionKind, ReadDefinition>();
  readonly #ask: Ask<ChangedDefinition, object>;

  /** @param self id of this node, which has applied its own change */
  constructor(questions: Questions, self: string) {
    this.#ask = questions.register<ChangedDefinition, object>({
      name: 'changed-definition',
      maxBytes: MAX_REPLY_BYTES,
      reply: async ({ kind, ns, key }, from) => {
        if (from !== self) await this.#readers.get(kind)?.(ns, key);
        return NO_ROWS;
      },
    });
  }

  /** Registers how this node reads definitions of one kind again. */
  onChange(kind: DefinitionKind, read: ReadDefinition): void {
    this.#readers.set(kind, read);
  }

  /**
   * Resolves once every other node of the namespace that replies within a second has applied a definition that this
   * node stored or deleted. Never rejects: nodes that do not reply learn of the change later.
   */
  async wait(kind: DefinitionKind, namespace: Namespace, key: string): Promise<void> {
    await this.#ask({ kind, ns: namespace.name, key }, namespace.cluster);
  }
}
