import type { AnyNode } from 'acorn';

/**
 * Whether a selector can change nothing but its own variables, if all that it finds in the message is data. Then the VM
 * need not write the payload out to see whether it changed, which is two thirds of what reading it costs.
 *
 * The proof: of the syntax, only what reads, compares and builds new values is accepted. A call is accepted if its function is a
 * literal, or is found under a name that in data, in the VM's frozen built-ins, and in what the selector may bind or build,
 * belongs only to functions that change nothing. A function is called back only if it is a literal, and so proven itself. If
 * another selector, which may leave functions of its own in a message, ran before, `guest/ask.ts` does not rely on this.
 */
export function isPure(node: AnyNode | null | undefined): boolean {
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

/** What a call may find under an accepted name must not be put there by the selector. */
function isPureProperty(node: AnyNode): boolean {
  if (node.type !== 'Property' || node.computed || node.kind !== 'init') return false;
  const name =
    node.key.type === 'Identifier' ? node.key.name : String(node.key.type === 'Literal' && node.key.value);
  return !METHODS.has(name) && !CALLING_METHODS.has(name) && isPure(node.value);
}

/** Variables that are declared or assigned: none may take the name of an accepted function. */
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

/** Built-ins that call nothing of data. */
const FUNCTIONS = words('String Number Boolean parseInt parseFloat isNaN isFinite');

/** Of strings, numbers, arrays, dates, regular expressions, Object, Array, Math and Date: they call nothing back. */
const METHODS = words(`
  at charAt charCodeAt includes indexOf lastIndexOf startsWith endsWith slice substring split join concat trim trimStart
  trimEnd toLowerCase toUpperCase padStart padEnd toFixed test flat keys values entries isArray isInteger isFinite isNaN
  getTime getDay getHours getUTCDay getUTCHours toISOString now hasOwn
  abs ceil floor round trunc min max`);

/** Of arrays: they call their first argument. */
const CALLING_METHODS = words('some every find findIndex findLast filter map flatMap reduce forEach');
