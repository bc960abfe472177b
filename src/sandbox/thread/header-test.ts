import type { AnyNode, Literal, MemberExpression } from 'acorn';

/** The headers of an element, by name. */
export type HeadersByName = Readonly<Record<string, string>>;

/** A selector, or a part of it, as a function of the headers alone: it neither throws nor changes anything. */
export type HeaderTest = (headers: HeadersByName) => unknown;

/** Bounds the time of a test, which nothing interrupts. */
const MAX_NODES = 64;

/**
 * Returns a selector that only compares headers with each other and with constants, such as `env => env.msg.hdrs.type
 * === "order"`, as a function; null: it does anything else. It needs no VM, since it runs no code but the operators
 * below on strings and constants, which means the same in the VM.
 * @param selector without parentheses around it
 */
export function toHeaderTest(selector: AnyNode): HeaderTest | null {
  const compiler = new Compiler(parameterOf(selector));
  return compiler.compile(resultOf(selector));
}

/** The name of the selector's parameter, which a bare expression does not declare; null: it is not a plain name. */
function parameterOf(selector: AnyNode): string | null {
  if (!isFunction(selector)) return 'env';
  const [parameter] = selector.params;
  const isPlain = selector.params.length === 1 && (selector.id ?? null) === null;
  return isPlain && parameter?.type === 'Identifier' ? parameter.name : null;
}

/** The expression that the selector returns; null: it has other statements. */
function resultOf(selector: AnyNode): AnyNode | null {
  if (!isFunction(selector)) return selector;
  const { body } = selector;
  if (body.type !== 'BlockStatement') return body;
  const [statement] = body.body;
  return body.body.length === 1 && statement?.type === 'ReturnStatement'
    ? (statement.argument ?? null)
    : null;
}

function isFunction(
  node: AnyNode,
): node is Extract<AnyNode, { type: 'ArrowFunctionExpression' | 'FunctionExpression' }> {
  return node.type === 'ArrowFunctionExpression' || node.type === 'FunctionExpression';
}

class Compiler {
  readonly #parameter: string | null;
  #nodes = 0;

  constructor(parameter: string | null) {
    this.#parameter = parameter === UNDEFINED ? null : parameter;
  }

  /** Null: the expression is not supported. */
  compile(node: AnyNode | null): HeaderTest | null {
    this.#nodes += 1;
    if (node === null || this.#parameter === null || this.#nodes > MAX_NODES) return null;
    switch (node.type) {
      case 'ParenthesizedExpression':
        return this.compile(node.expression);
      case 'Literal':
        return constant(node);
      case 'Identifier':
        return node.name === UNDEFINED ? () => undefined : null;
      case 'MemberExpression':
        return this.#header(node);
      case 'UnaryExpression': {
        const operand = node.operator === '!' ? this.compile(node.argument) : null;
        return operand && ((headers) => !operand(headers));
      }
      case 'BinaryExpression':
      case 'LogicalExpression': {
        const [left, right] = [this.compile(node.left), this.compile(node.right)];
        return left && right && (OPERATORS[node.operator]?.(left, right) ?? null);
      }
      case 'ConditionalExpression': {
        const [test, yes, no] = [node.test, node.consequent, node.alternate].map((part) =>
          this.compile(part),
        );
        return test && yes && no ? (headers) => (test(headers) ? yes(headers) : no(headers)) : null;
      }
      default:
        return null;
    }
  }

  /** `env.msg.hdrs.name`, or `env.msg.hdrs["name"]`. */
  #header(node: MemberExpression): HeaderTest | null {
    const message = memberOf(node.object, 'hdrs');
    const env = message && memberOf(message, 'msg');
    const name = nameOf(node);
    // In the VM, headers have no prototype.
    if (
      env?.type !== 'Identifier' ||
      env.name !== this.#parameter ||
      name === null ||
      name in Object.prototype
    )
      return null;
    return (headers) => headers[name];
  }
}

const UNDEFINED = 'undefined';

function constant({ value, regex, bigint }: Literal): HeaderTest | null {
  // `SelectorParser` builds no regular expressions: their value is null.
  return regex === undefined && bigint === undefined ? () => value : null;
}

/** The object of which the node reads this member; null: it is anything else. */
function memberOf(node: AnyNode, name: string): AnyNode | null {
  return node.type === 'MemberExpression' && nameOf(node) === name ? node.object : null;
}

/** The name of the member that the node reads; null: it is computed. */
function nameOf({ property, computed, optional }: MemberExpression): string | null {
  if (optional) return null;
  if (!computed) return property.type === 'Identifier' ? property.name : null;
  return property.type === 'Literal' && typeof property.value === 'string' ? property.value : null;
}

type Operator = (left: HeaderTest, right: HeaderTest) => HeaderTest;

const OPERATORS: Readonly<Record<string, Operator>> = {
  '===': (left, right) => (headers) => left(headers) === right(headers),
  '!==': (left, right) => (headers) => left(headers) !== right(headers),
  '&&': (left, right) => (headers) => left(headers) && right(headers),
  '||': (left, right) => (headers) => left(headers) || right(headers),
  '??': (left, right) => (headers) => left(headers) ?? right(headers),
};
