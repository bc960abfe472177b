import { readFile } from 'node:fs/promises';
import { parseDocument, type YAMLError } from 'yaml';
import { ConfigError, type ConfigProblem } from './problem.ts';
import { isTree, type Tree } from './schema.ts';

const ALIASES_MOST = 100;
const QUOTE = 'Mend it there; values with special characters go between single quotes';

/**
 * Reads a YAML file; JSON is YAML.
 * @throws ConfigError where it cannot be read, is no YAML, or is no map of options
 */
export async function readConfigFile(file: string): Promise<Tree> {
  let text: string;
  try {
    text = await readFile(file, 'utf8');
  } catch (error) {
    throw wrongFile(
      file,
      `cannot be read (${(error as NodeJS.ErrnoException).code})`,
      'Name a file that this user may read with --config',
    );
  }
  return parseConfig(file, text);
}

function parseConfig(file: string, text: string): Tree {
  const document = parseDocument(text);
  const fault = document.errors[0] ?? document.warnings[0];
  if (fault !== undefined) throw wrongFile(file, `is not YAML: ${describe(fault)}`, QUOTE);
  const content: unknown = toValue(file, document);
  if (content === null) return {};
  if (!isTree(content))
    throw wrongFile(file, 'holds no options', 'Write a map, such as "http: { port: 3444 }"');
  return content;
}

/** What is wrong and where. The rest of the parser's message may quote the file, secrets included. */
function describe({ message, linePos }: YAMLError): string {
  const [what = ''] = message.split(/: | at line |\n/);
  const [at] = linePos ?? [];
  return at === undefined ? what : `${what}, at line ${at.line}, column ${at.col}`;
}

function toValue(file: string, document: ReturnType<typeof parseDocument>): unknown {
  try {
    return document.toJS({ maxAliasCount: ALIASES_MOST });
  } catch {
    throw wrongFile(file, 'has an alias (*name) that stands for nothing, or too many of them', QUOTE);
  }
}

function wrongFile(file: string, problem: string, remedy: string): ConfigError {
  const fault: ConfigProblem = { source: file, path: '', problem, remedy };
  return new ConfigError([fault]);
}
