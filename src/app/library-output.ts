import { format } from 'node:util';
import type { Logger } from 'pino';
import { maskDeep } from '../util/mask.ts';

const LEVELS = { debug: 'debug', log: 'info', info: 'info', warn: 'warn', error: 'error' } as const;
type Name = keyof typeof LEVELS;

/** A driver says the same at every connection; once is enough. */
const TEXTS_MOST = 100;

/**
 * Takes what libraries say by the console, and what Node warns of, into the log: as they are they would be no
 * JSON, and might show secrets. Answers a function that lets them speak themselves again.
 */
export function followLibraries(logger: Logger): () => void {
  const own = { ...console };
  const said = new Set<string>();
  for (const [name, level] of Object.entries(LEVELS)) {
    console[name as Name] = (...values: unknown[]) => {
      const text = format(...values.map(shown));
      if (said.has(text)) return;
      if (said.size < TEXTS_MOST) said.add(text);
      logger[level]({ event: 'library' }, text);
    };
  }
  const listeners = process.listeners('warning');
  const onWarning = (err: Error): void => logger.warn({ event: 'library', err }, 'node warns');
  // Without one they are turned off, by `--no-warnings`.
  if (listeners.length > 0) process.removeAllListeners('warning').on('warning', onWarning);
  return () => {
    for (const name of Object.keys(LEVELS) as Name[]) console[name] = own[name];
    process.off('warning', onWarning);
    if (listeners.length === 0) return;
    for (const listener of listeners) process.on('warning', listener);
  };
}

/** What drivers attach to their errors is not for a log. */
function shown(value: unknown): unknown {
  return value instanceof Error ? `${value.name}: ${value.message}` : maskDeep(value);
}
