import { type AnyNode, type Options, type Program, parse } from 'acorn';
import { QuaysideError } from '../../model/errors.ts';
import { looksOnly } from './looks-only.ts';
import { nodesOf } from './nodes.ts';

/** The longest selector, bytes of UTF-8 (reliability 1.7). */
export const SELECTOR_BYTES = 8192;

/** A selector as the VM takes it. */
export interface SelectorScript {
  /** Evaluates to a function of `env`. The selector begins on its second line. */
  readonly script: string;
  /** It certainly leaves the payload alone: nobody need look whether it did. */
  readonly looksOnly: boolean;
}

/** Why a selector cannot be used. Line and column count from 1 and are null where nothing points there. */
export interface SourceProblem {
  readonly message: string;
  readonly line: number | null;
  readonly column: number | null;
}

/** What stands before the selector, in front of its first line: scripts are strict, always. */
const OPEN = '"use strict";(\n';
const CLOSE = '\n)';
const OPEN_BARE = '"use strict";(function (env) { return (\n';
const CLOSE_BARE = '\n) })';

const GRAMMAR: Options = {
  ecmaVersion: 'latest',
  // As the VM evaluates it: a script, so that both read the same text alike, odd comments included.
  sourceType: 'script',
  locations: true,
  // Tells `(a)` from `(a), (b)`: the latter would be two programs in one.
  preserveParens: true,
};

/**
 * Reads a selector: a function expression (`env => …`, `function (env) { … }`) or a bare expression over
 * `env`, strict mode, at most 8 KiB (decisions, "Exchanges"). Answers the script for the VM.
 * What it refuses cannot be run: a syntax error, more than one expression, async code, `import`.
 * @throws QuaysideError `invalid-body`; `details.parameter` is `path`, `details.extra` has `line` and
 * `column`, from 1
 */
export function readSelector(source: string, path: string): SelectorScript {
  const text = source.replace(/;\s*$/, '');
  if (text.trim() === '') throw invalidSelector(path, at('A selector is a function of env; this is empty.'));
  if (Buffer.byteLength(source) > SELECTOR_BYTES) {
    throw invalidSelector(path, at(`A selector has at most ${SELECTOR_BYTES} bytes.`));
  }
  const expression = parseAlone(text, path);
  refuseUnavailable(expression, path);
  return { script: scriptOf(text, expression, path), looksOnly: looksOnly(expression) };
}

function scriptOf(text: string, expression: AnyNode, path: string): string {
  const whole = unwrapped(expression);
  if (whole.type !== 'ArrowFunctionExpression' && whole.type !== 'FunctionExpression') {
    return OPEN_BARE + text + CLOSE_BARE;
  }
  if (whole.generator) throw refused(whole, path, 'A selector cannot be a generator function.');
  return OPEN + text + CLOSE;
}

/** The refusal that {@link readSelector} throws, for problems that only the VM's own compiler sees. */
export function invalidSelector(path: string, problem: SourceProblem): QuaysideError {
  const { message, line, column } = problem;
  const where = line === null ? '' : `, line ${line}, column ${column ?? 1}`;
  return new QuaysideError('invalid-body', `${path}${where}: ${message}`, {
    parameter: path,
    ...(line === null ? {} : { extra: { line, column: column ?? 1 } }),
  });
}

/** A position in a script (line from 1, column from 1) as one in the selector. */
export function at(message: string, scriptLine?: number, column?: number): SourceProblem {
  if (scriptLine === undefined || scriptLine < 2) return { message, line: null, column: null };
  return { message, line: scriptLine - 1, column: column ?? 1 };
}

/** The one expression that the selector is, without the parentheses that we put around it. */
function parseAlone(text: string, path: string): AnyNode {
  const script = OPEN + text + CLOSE;
  const program = parseScript(script, text.split('\n').length, path);
  const last = program.body[1];
  const whole = last?.type === 'ExpressionStatement' ? last.expression : null;
  if (program.body.length !== 2 || whole?.type !== 'ParenthesizedExpression') {
    throw invalidSelector(path, at('A selector is one expression.'));
  }
  return whole.expression;
}

function parseScript(script: string, lines: number, path: string): Program {
  try {
    return parse(script, GRAMMAR);
  } catch (error) {
    if (error instanceof SyntaxError && 'loc' in error) {
      const loc = error.loc as { line: number; column: number };
      // One that ends too soon fails on the parenthesis that we added, past its last line.
      if (loc.line > lines + 1) throw invalidSelector(path, at('The selector ends too soon.', lines + 1));
      const message = error.message.replace(/ \(\d+:\d+\)$/, '.');
      throw invalidSelector(path, at(message, loc.line, loc.column + 1));
    }
    // The parser is recursive: a few thousand brackets exhaust its stack.
    if (error instanceof RangeError) throw invalidSelector(path, at('This is nested too deeply.'));
    throw error;
  }
}

function unwrapped(node: AnyNode): AnyNode {
  return node.type === 'ParenthesizedExpression' ? unwrapped(node.expression) : node;
}

function refuseUnavailable(root: AnyNode, path: string): void {
  for (const node of nodesOf(root)) {
    if ('async' in node && node.async === true) {
      throw refused(node, path, 'A selector answers at once: async functions are not available.');
    }
    if (node.type === 'ImportExpression') throw refused(node, path, 'import is not available to selectors.');
  }
}

function refused(node: AnyNode, path: string, message: string): QuaysideError {
  return invalidSelector(path, at(message, node.loc?.start.line, (node.loc?.start.column ?? 0) + 1));
}
