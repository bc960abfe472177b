/** One thing that is wrong with the configuration, and what to do about it. */
export interface ConfigProblem {
  /** Where the value came from: the file, or an environment variable; null for a default. */
  readonly source: string | null;
  /** As in {@link pathText}; '' for the whole file. */
  readonly path: string;
  /** What is wrong; reads on from the path. Never holds a secret. */
  readonly problem: string;
  readonly hint: string;
}

/** Reports that the value at a path cannot be used. */
export type Report = (path: Path, problem: string, hint: string) => void;

/** Makes the error for the value at a path, with where it came from. */
export type ErrorAt = (path: Path, problem: string, hint: string) => ConfigError;

/** A configuration with which the server does not start. One line a problem, for people to read. */
export class ConfigError extends Error {
  readonly problems: readonly ConfigProblem[];

  constructor(problems: readonly ConfigProblem[]) {
    super(problems.map(problemLine).join('\n'));
    this.name = 'ConfigError';
    this.problems = problems;
  }
}

export type Path = readonly string[];

/** `http.port`; a name that has a dot or a space in it is shown in brackets. */
export function pathText(path: Path): string {
  return path
    .map((part, i) => {
      if (!/^[\w*-]+$/.test(part)) return `[${JSON.stringify(part)}]`;
      return i === 0 ? part : `.${part}`;
    })
    .join('');
}

function problemLine({ source, path, problem, hint }: ConfigProblem): string {
  const where = [source, path].filter((part) => part !== null && part !== '').join(': ');
  return `${where}: ${problem}. ${hint}${hint.endsWith('?') ? '' : '.'}`;
}
