import type { ErrorAt } from '../config/errors.ts';
import type { Config } from '../config/options.ts';
import { type Declaration, parseDeclaration } from '../exchange/declaration.ts';
import { QuaysideError } from '../model/errors.ts';

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
  return errorAt(['exchanges', id], error.message.replace(/\.$/, ''), 'Correct its declaration');
}
