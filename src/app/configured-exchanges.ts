import { Broker } from '../broker/broker.ts';
import { type ErrorAt, withoutPeriod } from '../config/errors.ts';
import type { Config } from '../config/options.ts';
import { checkDeclaration, type Declaration, NODE, parseDeclaration } from '../exchange/declaration.ts';
import { QuaysideError } from '../model/errors.ts';
import type { SelectorSandbox } from '../sandbox/sandbox.ts';
import type { EngineParts, EngineSet } from './engines.ts';
import { namespaceSetups } from './namespaces.ts';

// The exchanges of the configuration. If one cannot run, because of its namespace or selector for example, the error is
// a ConfigError at its path.

/** The declarations by id. @throws ConfigError */
export function parseExchanges({ exchanges }: Config, errorAt: ErrorAt): ReadonlyMap<string, Declaration> {
  const parsed = new Map<string, Declaration>();
  for (const [id, declared] of Object.entries(exchanges)) {
    try {
      parsed.set(id, parseDeclaration(declared));
    } catch (error) {
      throw explain(id, error, errorAt);
    }
  }
  return parsed;
}

/**
 * Makes the checks of a start on the exchanges of a configuration. Returns how many there are.
 * @param engines of the configuration; they need not be started
 * @throws ConfigError
 */
export async function tryExchanges(
  config: Config,
  engines: EngineSet,
  sandbox: SelectorSandbox,
  parts: EngineParts,
): Promise<number> {
  const exchanges = parseExchanges(config, parts.errorAt);
  if (exchanges.size === 0) return 0;
  const namespaces = namespaceSetups(config, engines, parts.log);
  const broker = new Broker({ ...parts, namespaces, random: Math.random, waiting: config.waiting });
  const options = { broker, sandbox, selectors: config.selectors === 'on' };
  await checkExchanges(
    exchanges,
    (declaration) => checkDeclaration(declaration, options, NODE),
    parts.errorAt,
  );
  return exchanges.size;
}

/** @throws ConfigError for the first exchange whose check throws a QuaysideError */
export async function checkExchanges(
  exchanges: ReadonlyMap<string, Declaration>,
  check: (declaration: Declaration) => Promise<void>,
  errorAt: ErrorAt,
): Promise<void> {
  for (const [id, declaration] of exchanges) {
    await check(declaration).catch((error: unknown) => {
      throw explain(id, error, errorAt);
    });
  }
}

function explain(id: string, error: unknown, errorAt: ErrorAt): unknown {
  if (!(error instanceof QuaysideError)) return error;
  return errorAt(['exchanges', id], withoutPeriod(error), 'Correct its declaration');
}
