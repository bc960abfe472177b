import type { NamespacePolicy } from '../../engine/engine.ts';
import { type GroupName, PLAIN_GROUP } from '../../model/element.ts';
import type { QueueKey } from '../../model/names.ts';

/** Where the failed elements of a queue go. */
export interface LetterTarget {
  readonly queue: QueueKey;
  readonly groups: readonly GroupName[];
}

/** What the namespaces of this engine said of themselves. */
export class Policies {
  readonly #byName: ReadonlyMap<string, NamespacePolicy>;

  constructor(policies: readonly NamespacePolicy[]) {
    this.#byName = new Map(policies.map((policy) => [policy.name, policy]));
  }

  /** Whether elements of the namespace may have several groups. */
  isStream(ns: string): boolean {
    return (this.#byName.get(ns)?.groups ?? null) !== null;
  }

  /** How long elements of a namespace stay at most, ms; null: until they are finished. */
  retentionMs(ns: string): number | null {
    return this.#byName.get(ns)?.retentionMs ?? null;
  }

  /** Namespaces with a retention. */
  kept(): { readonly ns: string; readonly retentionMs: number }[] {
    return [...this.#byName.values()].flatMap(({ name: ns, retentionMs }) =>
      retentionMs === null ? [] : [{ ns, retentionMs }],
    );
  }

  /** Where an element of this queue goes that has failed so often; null: it stays. */
  letterTarget({ ns, name }: QueueKey, tries: number): LetterTarget | null {
    const policy = this.#byName.get(ns);
    const deadLetter = policy?.deadLetter ?? null;
    if (deadLetter === null || deadLetter.queue === name || tries < deadLetter.maxTries) return null;
    return { queue: { ns, name: deadLetter.queue }, groups: policy?.groups ?? [PLAIN_GROUP] };
  }
}
