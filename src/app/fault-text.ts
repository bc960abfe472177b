import { ConfigError } from '../config/problem.ts';
import { maskText } from '../util/mask.ts';
import { CommandFailed, UsageError } from './command-line.ts';

export const EXIT = { done: 0, fault: 1, configuration: 2 } as const;

/** The message for an error that ends the process, and its exit code. One that the operator can fix has no stack. */
export function faultText(fault: unknown): { readonly text: string; readonly code: number } {
  const faults = fault instanceof AggregateError ? fault.errors : [fault];
  if (faults.every((one) => one instanceof ConfigError || one instanceof UsageError)) {
    const lines = faults.flatMap((one: Error) => one.message.split('\n'));
    return { text: `${lines.map((line) => `quayside: ${line}`).join('\n')}\n`, code: EXIT.configuration };
  }
  if (fault instanceof CommandFailed)
    return { text: `quayside: ${maskText(fault.message)}\n`, code: EXIT.fault };
  const shown = faults.map((one) => (one instanceof Error ? (one.stack ?? one.message) : String(one)));
  return { text: `quayside: ${maskText(shown.join('\n'))}\n`, code: EXIT.fault };
}
