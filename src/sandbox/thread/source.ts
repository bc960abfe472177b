import { type AnyNode, type Options, Parser, type Program } from 'acorn';
import type { SourceProblem } from '../problem.ts';
import { isPure } from './pure.ts';

/** The longest selector, bytes of UTF-8 (reliability 1.7). */
export const SELECTOR_BYTES = 8192;

/** A selector as the VM takes it. */
export interface SelectorScript {
  /** Evaluates to a function of `env`. The selector begins on its second line. */
  readonly script: string;
  /** It changes nothing, unless another selector of its exchange does: see `pure.ts`. */
  readonly isPure: boolean;
}

/** What {@link readSelector} throws: why a selector cannot be used. */
export class SelectorError extends Error {
  readonly problem: SourceProblem;

  constructor(problem: SourceProblem) {
    super(problem.message);
    this.name = 'SelectorError';
    this.problem = problem;
  }
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
 * Acorn checks a regular expression by its own grammar, and then has V8 build it to put the object into the tree,
 * which nobody reads. That alone takes 0.5 to 2 s for 8 KiB of `\p{RGI_Emoji}` or `\p{L}`, and nothing can
 * interrupt it. So while one is read, none can be built.
 */
class SelectorParser extends Parser {
  readRegexp(): unknown {
    const { RegExp: builtIn } = globalThis;
    globalThis.RegExp = unavailable as unknown as RegExpConstructor;
    try {
      return READ_REGEXP.call(this);
    } finally {
      globalThis.RegExp = builtIn;
    }
  }
}

/** In the parser, and not in its types. */
const READ_REGEXP = (Parser.prototype as unknown as { readRegexp(): unknown }).readRegexp;

function unavailable(): never {
  throw new SyntaxError('no regular expression is built here');
}

/**
 * Reads a selector: a function expression (`env => …`, `function (env) { … }`) or a bare expression over
 * `env`, strict mode, at most 8 KiB (decisions, "Exchanges"). Returns the script for the VM.
 * It rejects what cannot be run: a syntax error, more than one expression, async code, `import`.
 * @throws SelectorError
 */
export function readSelector(source: string): SelectorScript {
  const text = source.replace(/;\s*$/, '');
  if (text.trim() === '') throw invalid('A selector is a function of env; this is empty.');
  if (Buffer.byteLength(source) > SELECTOR_BYTES) {
    throw invalid(`A selector has at most ${SELECTOR_BYTES} bytes.`);
  }
  const expression = parseAlone(text);
  rejectUnavailable(expression);
  return { script: scriptOf(text, expression), isPure: isPure(expression) };
}

function scriptOf(text: string, expression: AnyNode): string {
  const whole = unwrapped(expression);
  if (whole.type !== 'ArrowFunctionExpression' && whole.type !== 'FunctionExpression') {
    return OPEN_BARE + text + CLOSE_BARE;
  }
  if (whole.generator) throw invalidAt(whole, 'A selector cannot be a generator function.');
  return OPEN + text + CLOSE;
}

/** A position in a script (line from 1, column from 1) as one in the selector. */
export function inSelector(message: string, scriptLine?: number, column?: number): SourceProblem {
  if (scriptLine === undefined || scriptLine < 2) return { message, line: null, column: null };
  return { message, line: scriptLine - 1, column: column ?? 1 };
}

/** The one expression that the selector is, without the parentheses that we put around it. */
function parseAlone(text: string): AnyNode {
  const program = parseScript(text);
  const last = program.body[1];
  const whole = last?.type === 'ExpressionStatement' ? last.expression : null;
  if (program.body.length !== 2 || whole?.type !== 'ParenthesizedExpression') {
    throw invalid('A selector is one expression.');
  }
  return whole.expression;
}

function parseScript(text: string): Program {
  try {
    return SelectorParser.parse(OPEN + text + CLOSE, GRAMMAR);
  } catch (error) {
    if (error instanceof SyntaxError && 'loc' in error) {
      const loc = error.loc as { line: number; column: number };
      const end = endOf(text);
      // One that ends too soon fails on the parenthesis that we added, past its last line.
      if (loc.line > end.line) throw invalid('The selector ends too soon.', end.line, end.column);
      const message = error.message.replace(/ \(\d+:\d+\)$/, '.');
      throw invalid(message, loc.line, loc.column + 1);
    }
    // The parser is recursive: a few thousand brackets exhaust its stack.
    if (error instanceof RangeError) throw invalid('This is nested too deeply.');
    throw error;
  }
}

/** Where a selector ends, as a position in its script. */
function endOf(text: string): { line: number; column: number } {
  const lines = text.split(/\r\n|[\n\r\u2028\u2029]/);
  return { line: lines.length + 1, column: (lines.at(-1) ?? '').length + 1 };
}

function unwrapped(node: AnyNode): AnyNode {
  return node.type === 'ParenthesizedExpression' ? unwrapped(node.expression) : node;
}

function rejectUnavailable(root: AnyNode): void {
  for (const node of nodesOf(root)) {
    if ('async' in node && node.async === true) {
      throw invalidAt(node, 'A selector answers at once: async functions are not available.');
    }
    if (node.type === 'ImportExpression') throw invalidAt(node, 'import is not available to selectors.');
  }
}

function invalidAt(node: AnyNode, message: string): SelectorError {
  return invalid(message, node.loc?.start.line, (node.loc?.start.column ?? 0) + 1);
}

function invalid(message: string, scriptLine?: number, column?: number): SelectorError {
  return new SelectorError(inSelector(message, scriptLine, column));
}

/** A node and all nodes below it, in no order. With a stack of its own: depth is the selector's to choose. */
function* nodesOf(root: AnyNode): Generator<AnyNode> {
  const open: unknown[] = [root];
  while (open.length > 0) {
    const next = open.pop();
    if (Array.isArray(next)) open.push(...next);
    else if (isNode(next)) {
      yield next;
      open.push(...Object.values(next));
    }
  }
}

function isNode(value: unknown): value is AnyNode {
  return typeof value === 'object' && value !== null && 'type' in value && typeof value.type === 'string';
}
