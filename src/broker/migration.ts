import type { Definitions, JsonValue } from '../engine/definitions.ts';
import { MigratingStorage } from '../engine/migrating-storage.ts';
import { JointStats, type Stats } from '../engine/stats.ts';
import { QuaysideError } from '../model/errors.ts';
import { quote } from '../util/quote.ts';
import type { Namespace } from './namespace.ts';
import { type OwnOptions, parseOptions } from './queue-options.ts';

/** The configuration lacks what a namespace needs whose elements are in two engines. */
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
 * The move of a namespace to the engine of another one. The namespace keeps its name there; the other one names the engine, and has its own
 * queues. The move is a definition in the engine that is left, stored before the first element goes to the new one, so that each later start joins
 * the two engines again before it stores anything.
 */
export class Migration {
  readonly storage: MigratingStorage;
  /** Of the new engine: it gets pause flags and options, too. */
  readonly definitions: Definitions;
  /** Of both engines. */
  readonly stats: Stats;
  /** The namespace that names the new engine. */
  readonly to: string;
  readonly #source: Namespace;

  constructor(source: Namespace, target: Namespace) {
    const { storage, definitions, stats, shown } = target.setup;
    const own = source.setup;
    this.#source = source;
    this.to = target.name;
    this.storage = new MigratingStorage({ from: own.storage, to: storage });
    this.definitions = definitions;
    this.stats = own.shown.stats.url === shown.url ? own.stats : new JointStats(own.stats, stats);
  }

  /** How many elements the engine that is left still has, in a stream once for each group. */
  async left(): Promise<number> {
    const { storage, policy } = this.#source.setup;
    return (await storage.usage(policy.name, false)).elements;
  }

  /** Gives the new engine the pause flags and options that the old one has, and no others. */
  async copyDefinitions(): Promise<void> {
    const { definitions, name } = this.#source;
    for (const kind of ['queue', 'queue-options'] as const) {
      const isOwn = ({ key }: { key: string }): boolean => (JSON.parse(key) as string[])[0] === name;
      const [old, copied] = await Promise.all([definitions.list(kind), this.definitions.list(kind)]);
      const kept = new Set<string>();
      for (const { key, value } of old.filter(isOwn)) {
        kept.add(key);
        const queue = { ns: name, name: (JSON.parse(key) as string[])[1] ?? '' };
        await this.storage.declare([queue], kind === 'queue-options' ? optionsIn(value) : undefined);
        await this.definitions.put(kind, key, value, 'any');
      }
      for (const { key } of copied.filter(isOwn)) {
        if (!kept.has(key)) await this.definitions.delete(kind, key, 'any');
      }
    }
  }
}

/**
 * Checks that a namespace can move to the engine of another one.
 * @throws QuaysideError `not-supported`, `invalid-parameter`, `definition-conflict`
 */
export async function checkMigration(source: Namespace, target: Namespace): Promise<void> {
  const [from, to] = [quote(source.name), quote(target.name)];
  if (source.migration !== null) {
    throw new QuaysideError(
      'definition-conflict',
      `Namespace ${from} moves to the engine of namespace ${quote(source.migration.to)} already.`,
    );
  }
  const { ownsStore, storage, policy } = source.setup;
  if (ownsStore !== true || source.isShared) {
    throw new QuaysideError(
      'not-supported',
      `Namespace ${from} (${source.type}) cannot be moved: other nodes may use its engine at the same time. Only namespaces in a file of SQLite, without a signaller that is shared, can be moved.`,
    );
  }
  const lacks = (what: string): QuaysideError =>
    new QuaysideError('invalid-parameter', `Namespace ${from} cannot move to the engine of ${to}: ${what}.`, {
      parameter: 'to.ns',
    });
  const next = target.setup;
  if (next.storage === storage) throw lacks('it is the same engine');
  if (target.migration !== null) throw lacks('that namespace itself moves to another engine');
  const kindOf = ({ type }: Namespace): string => type.slice(type.indexOf(':') + 1);
  if (kindOf(source) !== kindOf(target)) {
    throw lacks(`their variants differ, ${kindOf(source)} and ${kindOf(target)}`);
  }
  const [groups, others] = [policy.groups ?? [], next.policy.groups ?? []].map((names) => names.join(', '));
  if (groups !== others) throw lacks(`their groups differ, ${groups} and ${others}`);
  if ((await next.storage.usage(source.name, false)).elements > 0) {
    throw lacks(`it has elements of a namespace with the name ${from} already`);
  }
}

/** What is not understood is copied, and as if it were not there. */
function optionsIn(value: JsonValue): OwnOptions | undefined {
  try {
    return parseOptions(value);
  } catch {
    return undefined;
  }
}

export function migrationValue(to: string): JsonValue {
  return { to };
}

/** The namespace that a stored migration names. */
export function migrationTarget(value: JsonValue): string {
  const isObject = typeof value === 'object' && value !== null && 'to' in value;
  return isObject && typeof value.to === 'string' ? value.to : '';
}
