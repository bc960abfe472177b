import type { Config } from '../config/options.ts';
import { ConfigError, pathText } from '../config/problem.ts';
import { type Declaration, parseDeclaration } from '../exchange/declaration.ts';
import type { Exchanges } from '../exchange/exchanges.ts';
import { QuaysideError } from '../model/errors.ts';
import type { Service } from '../util/service.ts';
import type { SourceOf } from './users.ts';

/** The exchanges that the configuration declares. @throws ConfigError */
export function configuredExchanges(config: Config, sourceOf: SourceOf): Map<string, Declaration> {
  return new Map(
    Object.entries(config.exchanges).map(([id, declared]) => {
      try {
        return [id, parseDeclaration(declared)];
      } catch (fault) {
        throw refusal(fault, id, sourceOf);
      }
    }),
  );
}

/** What keeps a configured exchange from starting (a namespace, a selector) is a fault of the configuration. */
export function startableExchanges(
  exchanges: Exchanges,
  configured: ReadonlyMap<string, Declaration>,
  sourceOf: SourceOf,
): Service {
  return {
    async start() {
      for (const [id, declaration] of configured) {
        await exchanges.check(declaration).catch((fault: unknown) => {
          throw refusal(fault, id, sourceOf);
        });
      }
      await exchanges.start();
    },
    stop: () => exchanges.stop(),
  };
}

function refusal(fault: unknown, id: string, sourceOf: SourceOf): unknown {
  if (!(fault instanceof QuaysideError)) return fault;
  const path = ['exchanges', id];
  const problem = fault.message.replace(/\.$/, '');
  return new ConfigError([
    { source: sourceOf(path), path: pathText(path), problem, remedy: 'Mend its declaration' },
  ]);
}
