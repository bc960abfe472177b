import { QuaysideError } from '../model/errors.ts';

/** Why a selector cannot be used. Line and column count from 1, and are null if nothing points there. */
export interface SourceProblem {
  readonly message: string;
  readonly line: number | null;
  readonly column: number | null;
}

/** The error that a client gets for a selector; `path` is where the selector was in what it sent. */
export function invalidSelector(path: string, problem: SourceProblem): QuaysideError {
  const { message, line, column } = problem;
  const where = line === null ? '' : `, line ${line}, column ${column ?? 1}`;
  return new QuaysideError('invalid-body', `${path}${where}: ${message}`, {
    parameter: path,
    ...(line === null ? {} : { extra: { line, column: column ?? 1 } }),
  });
}
