import {
  type Definition,
  type DefinitionKind,
  type Definitions,
  definitionConflict,
  queueOfDefinition,
  unlessChanged,
} from '../engine/definitions.ts';
import { JointStats, type Stats } from '../engine/stats.ts';
import { QuaysideError } from '../model/errors.ts';
import { isRecord } from '../util/is-record.ts';
import { quote } from '../util/quote.ts';
import { MigratingStorage } from './migrating-storage.ts';
import type { Namespace } from './namespace.ts';

/** A namespace is being migrated, and the configuration does not name its new engine. */
export class MigrationTargetMissing extends Error {
  readonly namespace: string;
  readonly to: string;

  constructor(namespace: string, to: string) {
    super(
      `Namespace ${namespace} moves to the engine of namespace ${to}, which is not configured on another engine.`,
    );
    this.namespace = namespace;
    this.to = to;
  }
}

/**
 * The migration of a namespace to the engine of another namespace, the target. The namespace keeps its name there; the
 * target only names the engine, and has its own queues. A definition in the old engine records the migration before the
 * first element is stored in the new one, so that each later start joins the two engines again before it stores
 * anything.
 */
export class Migration {
  readonly storage: MigratingStorage;
  /** The definitions of the new engine, which gets pause flags and options, too. */
  readonly definitions: Definitions;
  /** The statistics of both engines. */
  readonly stats: Stats;
  /** The target: the namespace that names the new engine. */
  readonly to: string;
  readonly #source: Namespace;

  constructor(source: Namespace, target: Namespace) {
    const { storage, definitions, stats, shown } = target.setup;
    const sourceSetup = source.setup;
    this.#source = source;
    this.to = target.name;
    this.storage = new MigratingStorage({ from: sourceSetup.storage, to: storage });
    this.definitions = definitions;
    this.stats =
      sourceSetup.shown.stats.url === shown.url
        ? sourceSetup.stats
        : new JointStats(sourceSetup.stats, stats);
  }

  /** Reads the target of a namespace's migration; null: there is no migration. */
  static async storedTarget({ definitions, name }: Namespace): Promise<string | null> {
    const stored = await definitions.get('migration', name);
    if (stored === null) return null;
    const { value } = stored;
    return isRecord(value) && typeof value.to === 'string' ? value.to : '';
  }

  /** Records a migration. @throws QuaysideError `definition-conflict` if there is one to another target */
  static async store(namespace: Namespace, target: Namespace): Promise<void> {
    const { definitions, name } = namespace;
    const to = target.name;
    const stored = await Migration.storedTarget(namespace);
    // An earlier write whose outcome was unknown has recorded it.
    if (stored === to) return;
    if (stored !== null) throw definitionConflict('migration', name);
    // The namespace may have left the target's engine before, and would leave it again at the next start.
    await target.definitions.delete('migration', name, 'any');
    await definitions.put('migration', name, { to }, null);
  }

  /** How many elements remain in the old engine; in a stream, each counts once per group. */
  async left(): Promise<number> {
    const { storage, policy } = this.#source.setup;
    return (await storage.usage(policy.name, false)).elements;
  }

  /**
   * Makes the pause flags and options in the new engine equal to those in the old one, and writes only what differs.
   * Later changes are written to both engines, first to the old one. So the new one is read first here, and definitions
   * that change there in the meantime are left as they are.
   */
  async copyDefinitions(): Promise<void> {
    const { definitions, name } = this.#source;
    for (const kind of ['queue', 'queue-options'] as const) {
      const isOwn = ({ key }: Definition): boolean => queueOfDefinition(key).ns === name;
      const before = await this.definitions.list(kind);
      const copies = new Map(before.filter(isOwn).map((copy) => [copy.key, copy]));
      for (const definition of (await definitions.list(kind)).filter(isOwn)) {
        const { key, value } = definition;
        const copy = copies.get(key) ?? null;
        copies.delete(key);
        if (copy !== null && JSON.stringify(copy.value) === JSON.stringify(value)) continue;
        const queue = queueOfDefinition(key);
        // The copy is last: it says that the new engine has what belongs to it.
        if (kind === 'queue') await this.storage.declare([queue]);
        else await this.#source.applyOptions(queue, definition);
        await unlessChanged(this.#copy(kind, definition, copy?.version ?? null));
      }
      for (const { key, version } of copies.values()) {
        await unlessChanged(this.definitions.delete(kind, key, version));
      }
    }
  }

  async #copy(kind: DefinitionKind, { key, value }: Definition, expected: string | null): Promise<void> {
    const version = await this.definitions.put(kind, key, value, expected);
    // A concurrent deletion may have found no copy to delete.
    const original = await this.#source.definitions.get(kind, key);
    if (original === null) await this.definitions.delete(kind, key, version);
  }
}

/**
 * Checks that a namespace can be migrated to the engine of another one.
 * @throws QuaysideError `not-supported`, `invalid-parameter`, `definition-conflict`
 */
export async function checkMigration(source: Namespace, target: Namespace): Promise<void> {
  const [from, to] = [quote(source.name), quote(target.name)];
  if (source.migration !== null) {
    throw new QuaysideError(
      'definition-conflict',
      `Namespace ${from} is already moving to the engine of namespace ${quote(source.migration.to)}.`,
    );
  }
  const { ownsStore, storage, policy } = source.setup;
  if (ownsStore !== true || source.isShared) {
    const isInMemory = !source.isShared && source.type.startsWith('sqlite:');
    const reason = isInMemory
      ? 'it is in memory, so the migration could not be stored'
      : 'other nodes may use its engine at the same time';
    throw new QuaysideError(
      'not-supported',
      `Namespace ${from} (${source.type}) cannot be moved: ${reason}. Only namespaces in a SQLite file, without a shared signaller, can be moved.`,
    );
  }
  const rejected = (reason: string): QuaysideError =>
    new QuaysideError(
      'invalid-parameter',
      `Namespace ${from} cannot move to the engine of ${to}: ${reason}.`,
      {
        parameter: 'to.ns',
      },
    );
  const next = target.setup;
  if (next.storage === storage) throw rejected('it is the same engine');
  if (target.migration !== null) throw rejected('that namespace itself moves to another engine');
  const variantOf = ({ type }: Namespace): string => type.slice(type.indexOf(':') + 1);
  if (variantOf(source) !== variantOf(target)) {
    throw rejected(`their variants differ, ${variantOf(source)} and ${variantOf(target)}`);
  }
  const [groups, others] = [policy.groups ?? [], next.policy.groups ?? []].map((names) => names.join(', '));
  if (groups !== others) throw rejected(`their groups differ, ${groups} and ${others}`);
  if ((await next.storage.usage(source.name, false)).elements > 0) {
    throw rejected(`it has elements of a namespace with the name ${from} already`);
  }
}
