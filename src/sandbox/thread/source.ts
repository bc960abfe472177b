import { type AnyNode, type Options, Parser, type Program } from 'acorn';
import { LIMITS } from '../../model/limits.ts';
import type { SourceProblem } from '../limits.ts';
import { type HeaderTest, toHeaderTest } from './header-test.ts';

/** A parsed selector, ready for the VM. */
export interface SelectorScript {
  /** Evaluates to a function of `env`. The selector starts in its second line. */
  readonly script: string;
  /** Whether it changes nothing, as long as the message contains only data: see the function `isPure`. */
  readonly isPure: boolean;
  /** The same selector without the VM; null: it needs the VM. */
  readonly headerTest: HeaderTest | null;
}

/** Thrown by {@link readSelector} for an invalid selector. */
export class SelectorError extends Error {
  readonly problem: SourceProblem;

  constructor(problem: SourceProblem) {
    super(problem.message);
    this.name = 'SelectorError';
    this.problem = problem;
  }
}

/** The line before the selector, which makes the script strict. */
const OPEN = '"use strict";(\n';
const CLOSE = '\n)';
const OPEN_BARE = '"use strict";(function (env) { return (\n';
const CLOSE_BARE = '\n) })';

const GRAMMAR: Options = {
  ecmaVersion: 'latest',
  // As in the VM, so that both parse the same text equally, including HTML-like comments.
  sourceType: 'script',
  locations: true,
  // Distinguishes `(a)` from `(a), (b)`, which would be two expressions.
  preserveParens: true,
};

/**
 * Acorn validates regular expressions by its own grammar and then creates the RegExp object for the tree, which is not
 * used here. Creating it takes 0.5 to 2 s for 8 KiB of `\p{RGI_Emoji}` or `\p{L}` and cannot be interrupted, so it is
 * disabled while a regular expression is read.
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

/** Exists in the parser, but not in its types. */
const READ_REGEXP = (Parser.prototype as unknown as { readRegexp(): unknown }).readRegexp;

function unavailable(): never {
  throw new SyntaxError('no regular expression is built here');
}

/**
 * Parses a selector: a function expression (`env => …`, `function (env) { … }`) or a bare expression over `env`, in
 * strict mode, of at most 8 KiB (docs/guides/exchanges.md). Returns the script for the VM. Rejects syntax errors, more
 * than one expression, async code, and `import`.
 * @throws SelectorError
 */
export function readSelector(source: string): SelectorScript {
  const text = source.replace(/;\s*$/, '');
  if (text.trim() === '') throw invalid('The selector is empty. It must be a function of env.');
  if (Buffer.byteLength(source) > LIMITS.selectorBytes) {
    throw invalid(`A selector has at most ${LIMITS.selectorBytes} bytes.`);
  }
  const expression = parseExpression(text);
  rejectUnavailable(expression);
  return {
    script: scriptOf(text, expression),
    isPure: isPure(expression),
    headerTest: toHeaderTest(withoutParentheses(expression)),
  };
}

function scriptOf(text: string, expression: AnyNode): string {
  const whole = withoutParentheses(expression);
  if (whole.type !== 'ArrowFunctionExpression' && whole.type !== 'FunctionExpression') {
    return OPEN_BARE + text + CLOSE_BARE;
  }
  if (whole.generator) throw invalidAt(whole, 'A selector cannot be a generator function.');
  return OPEN + text + CLOSE;
}

/** Converts a position in a script (line and column from 1) to one in the selector. */
export function inSelector(message: string, scriptLine?: number, column?: number): SourceProblem {
  if (scriptLine === undefined || scriptLine < 2) return { message, line: null, column: null };
  return { message, line: scriptLine - 1, column: column ?? 1 };
}

/** Parses the selector's only expression, and removes the parentheses that `OPEN` and `CLOSE` add. */
function parseExpression(text: string): AnyNode {
  const program = parseScript(text);
  const last = program.body[1];
  const wrapped = last?.type === 'ExpressionStatement' ? last.expression : null;
  if (program.body.length !== 2 || wrapped?.type !== 'ParenthesizedExpression') {
    throw invalid('A selector is one expression.');
  }
  return wrapped.expression;
}

function parseScript(text: string): Program {
  try {
    return SelectorParser.parse(OPEN + text + CLOSE, GRAMMAR);
  } catch (error) {
    if (error instanceof SyntaxError && 'loc' in error) {
      const loc = error.loc as { line: number; column: number };
      const end = endOf(text);
      // An incomplete selector fails at the added parenthesis, after its last line.
      if (loc.line > end.line) throw invalid('The selector ends too soon.', end.line, end.column);
      const message = error.message.replace(/ \(\d+:\d+\)$/, '.');
      throw invalid(message, loc.line, loc.column + 1);
    }
    // The parser is recursive: a few thousand brackets exhaust its stack.
    if (error instanceof RangeError) throw invalid('The selector is nested too deeply.');
    throw error;
  }
}

/** The end of a selector, as a position in its script. */
function endOf(text: string): { line: number; column: number } {
  const lines = text.split(/\r\n|[\n\r\u2028\u2029]/);
  return { line: lines.length + 1, column: (lines.at(-1) ?? '').length + 1 };
}

function withoutParentheses(node: AnyNode): AnyNode {
  return node.type === 'ParenthesizedExpression' ? withoutParentheses(node.expression) : node;
}

function rejectUnavailable(root: AnyNode): void {
  for (const node of nodesOf(root)) {
    if ('async' in node && node.async === true) {
      throw invalidAt(node, 'A selector returns its result directly: async functions are not available.');
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

/** A node and all its descendants, in no particular order. Not recursive, because selectors can be nested deeply. */
function* nodesOf(root: AnyNode): Generator<AnyNode> {
  const pending: unknown[] = [root];
  while (pending.length > 0) {
    const next = pending.pop();
    if (Array.isArray(next)) pending.push(...next);
    else if (isNode(next)) {
      yield next;
      pending.push(...Object.values(next));
    }
  }
}

function isNode(value: unknown): value is AnyNode {
  return typeof value === 'object' && value !== null && 'type' in value && typeof value.type === 'string';
}

/**
 * Whether a selector can change only its own variables, provided that the message contains only data. The VM then need
 * not serialize the payload to detect changes, which saves two thirds of the cost of reading it.
 *
 * Proof: only syntax that reads, compares and builds new values is accepted. A call is accepted if the name of its
 * function belongs only to functions without side effects: in data, in the VM's frozen built-ins, and in anything that
 * the selector may bind or build. Callbacks must be function literals, which are checked themselves. If another
 * selector ran before, it may have left functions in the message; `guest.ts` then ignores this result.
 */
function isPure(node: AnyNode | null | undefined): boolean {
  if (node === null || node === undefined) return true;
  switch (node.type) {
    case 'Literal':
    case 'Identifier':
    case 'TemplateElement':
    case 'EmptyStatement':
    case 'BreakStatement':
    case 'ContinueStatement':
      return true;
    case 'ParenthesizedExpression':
    case 'ChainExpression':
    case 'ExpressionStatement':
      return isPure(node.expression);
    case 'ReturnStatement':
      return isPure(node.argument);
    case 'UnaryExpression':
      return node.operator !== 'delete' && isPure(node.argument);
    case 'UpdateExpression':
      return node.argument.type === 'Identifier';
    case 'AssignmentExpression':
      return node.left.type === 'Identifier' && isBindable(node.left) && isPure(node.right);
    case 'BinaryExpression':
    case 'LogicalExpression':
      return isPure(node.left) && isPure(node.right);
    case 'ConditionalExpression':
    case 'IfStatement':
      return isPure(node.test) && isPure(node.consequent) && isPure(node.alternate);
    case 'TemplateLiteral':
    case 'SequenceExpression':
      return node.expressions.every(isPure);
    case 'ArrayExpression':
      return node.elements.every(isPure);
    case 'ObjectExpression':
      return node.properties.every(isPureProperty);
    case 'MemberExpression':
      return isPure(node.object) && isPure(node.property);
    case 'ArrowFunctionExpression':
    case 'FunctionExpression':
      return !node.async && !node.generator && node.params.every(isBindable) && isPure(node.body);
    case 'BlockStatement':
      return node.body.every(isPure);
    case 'VariableDeclaration':
      return node.kind !== 'var' && node.declarations.every(({ id, init }) => isBindable(id) && isPure(init));
    case 'ForOfStatement':
      return (
        node.left.type === 'VariableDeclaration' &&
        isPure(node.left) &&
        isPure(node.right) &&
        isPure(node.body)
      );
    case 'NewExpression':
      return node.callee.type === 'Identifier' && node.callee.name === 'Date' && node.arguments.every(isPure);
    case 'CallExpression':
      return isPureCall(node.callee, node.arguments);
    default:
      return false;
  }
}

function isPureCall(callee: AnyNode, args: readonly AnyNode[]): boolean {
  if (!args.every(isPure)) return false;
  if (callee.type === 'Identifier') return FUNCTIONS.has(callee.name);
  if (callee.type !== 'MemberExpression' || callee.computed || callee.property.type !== 'Identifier')
    return false;
  const { name } = callee.property;
  if (!isPure(callee.object)) return false;
  return METHODS.has(name) || (CALLING_METHODS.has(name) && isFunction(args[0]));
}

function isFunction(node: AnyNode | undefined): boolean {
  return node?.type === 'ArrowFunctionExpression' || node?.type === 'FunctionExpression';
}

/** The selector must not define a property with the name of an accepted method. */
function isPureProperty(node: AnyNode): boolean {
  if (node.type !== 'Property' || node.computed || node.kind !== 'init') return false;
  const name =
    node.key.type === 'Identifier' ? node.key.name : String(node.key.type === 'Literal' && node.key.value);
  return !METHODS.has(name) && !CALLING_METHODS.has(name) && isPure(node.value);
}

/** Declared or assigned variables must not have the name of an accepted function. */
function isBindable(node: AnyNode | null): boolean {
  switch (node?.type) {
    case undefined:
      return true;
    case 'Identifier':
      return !FUNCTIONS.has(node.name) && node.name !== 'Date';
    case 'AssignmentPattern':
      return isBindable(node.left) && isPure(node.right);
    case 'RestElement':
      return isBindable(node.argument);
    case 'ArrayPattern':
      return node.elements.every(isBindable);
    case 'ObjectPattern':
      return node.properties.every((each) =>
        each.type === 'Property' ? isPure(each.key) && isBindable(each.value) : isBindable(each),
      );
    default:
      return false;
  }
}

const words = (text: string): ReadonlySet<string> => new Set(text.trim().split(/\s+/));

/** Built-ins that call no functions in data. */
const FUNCTIONS = words('String Number Boolean parseInt parseFloat isNaN isFinite');

/** Methods of strings, numbers, arrays, dates, regular expressions, Object, Array, Math and Date without callbacks. */
const METHODS = words(`
  at charAt charCodeAt includes indexOf lastIndexOf startsWith endsWith slice substring split join concat trim trimStart
  trimEnd toLowerCase toUpperCase padStart padEnd toFixed test flat keys values entries isArray isInteger isFinite isNaN
  getTime getDay getHours getUTCDay getUTCHours toISOString now hasOwn
  abs ceil floor round trunc min max`);

/** Array methods that call their first argument. */
const CALLING_METHODS = words('some every find findIndex findLast filter map flatMap reduce forEach');
