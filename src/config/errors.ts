/** The keys that lead to an option. */
export type Path = readonly string[];

/** Formats a path as `http.port`; names with other characters than `\w`, `*` and `-` are quoted in brackets. */
export function pathText(path: Path): string {
  return path
    .map((part, i) => {
      if (!/^[\w*-]+$/.test(part)) return `[${JSON.stringify(part)}]`;
      return i === 0 ? part : `.${part}`;
    })
    .join('');
}

/** One problem of the configuration, with a hint for its solution. */
export interface ConfigProblem {
  /** The configuration file or environment variable that gave the value; null for a default. */
  readonly source: string | null;
  /** As in {@link pathText}; '' for the whole file. */
  readonly path: string;
  /** The problem, worded to follow the path. Never contains a secret. */
  readonly problem: string;
  readonly hint: string;
}

/** The message of an error as a problem, which its hint follows. */
export function withoutPeriod({ message }: Error): string {
  return message.replace(/\.$/, '');
}

/** Reports an invalid value. */
export type Report = (path: Path, problem: string, hint: string) => void;

/** Creates the error for an invalid value, including its source. */
export type ErrorAt = (path: Path, problem: string, hint: string) => ConfigError;

/** An invalid configuration. The message has one line per problem. */
export class ConfigError extends Error {
  readonly problems: readonly ConfigProblem[];

  constructor(problems: readonly ConfigProblem[]) {
    super(problems.map(problemLine).join('\n'));
    this.name = 'ConfigError';
    this.problems = problems;
  }
}

function problemLine({ source, path, problem, hint }: ConfigProblem): string {
  const where = [source, path].filter((part) => part !== null && part !== '').join(': ');
  return `${where}: ${problem}. ${hint}${hint.endsWith('?') ? '' : '.'}`;
}
