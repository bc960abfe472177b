import type { AnyNode } from 'acorn';
import { nodesOf } from './nodes.ts';

/**
 * Whether a selector certainly leaves the payload as it found it. Then the VM need not write the payload out
 * to see: two thirds of what touching it costs. Where in doubt, no: that costs time and nothing else.
 *
 * Certain is what writes to no property at all and calls only what changes neither its object nor its
 * arguments. A function that is passed on by name is followed no further; code that hides a changing
 * built-in behind a computed name on purpose loses its change.
 */
export function looksOnly(selector: AnyNode): boolean {
  for (const node of nodesOf(selector)) if (mayChange(node)) return false;
  return true;
}

function mayChange(node: AnyNode): boolean {
  switch (node.type) {
    case 'AssignmentExpression':
    case 'ForInStatement':
    case 'ForOfStatement':
      return namesProperty(node.left);
    case 'UpdateExpression':
      return namesProperty(node.argument);
    case 'UnaryExpression':
      return node.operator === 'delete';
    case 'CallExpression':
      return !isHarmless(node.callee);
    case 'NewExpression':
      return !(node.callee.type === 'Identifier' && HARMLESS_CLASSES.has(node.callee.name));
    case 'MemberExpression':
      return node.property.type === 'Identifier' && CHANGING.has(node.property.name);
    case 'TaggedTemplateExpression':
    case 'YieldExpression':
    case 'ClassExpression':
    case 'ClassDeclaration':
      return true;
    default:
      return false;
  }
}

/** Whether a place that is written to is, or has in it, a property rather than variables only. */
function namesProperty(target: AnyNode): boolean {
  for (const node of nodesOf(target)) if (node.type === 'MemberExpression') return true;
  return false;
}

function isHarmless(callee: AnyNode): boolean {
  switch (callee.type) {
    case 'ParenthesizedExpression':
      return isHarmless(callee.expression);
    case 'ChainExpression':
      return isHarmless(callee.expression);
    case 'ArrowFunctionExpression':
    case 'FunctionExpression':
      return true;
    case 'Identifier':
      return HARMLESS_FUNCTIONS.has(callee.name);
    case 'MemberExpression':
      return (
        !callee.computed &&
        callee.property.type === 'Identifier' &&
        HARMLESS_METHODS.has(callee.property.name)
      );
    default:
      return false;
  }
}

const words = (text: string): ReadonlySet<string> => new Set(text.trim().split(/\s+/));

const HARMLESS_FUNCTIONS = words(`
  String Number Boolean BigInt Symbol parseInt parseFloat isNaN isFinite encodeURIComponent decodeURIComponent
  encodeURI decodeURI atob btoa`);

const HARMLESS_CLASSES = words('Date Set Map RegExp Error TypeError RangeError');

/** Of strings, numbers, arrays, dates, regular expressions, maps and sets, and of Object, Array, Math and JSON. */
const HARMLESS_METHODS = words(`
  at charAt charCodeAt codePointAt includes indexOf lastIndexOf startsWith endsWith slice substring substr split
  join concat trim trimStart trimEnd toLowerCase toUpperCase toString valueOf padStart padEnd repeat replace
  replaceAll match matchAll search test exec normalize localeCompare isWellFormed toWellFormed
  toFixed toPrecision toExponential
  some every find findIndex findLast findLastIndex filter map flat flatMap reduce reduceRight forEach
  keys values entries has get toSorted toReversed toSpliced with
  getTime getDate getDay getMonth getFullYear getHours getMinutes getSeconds getMilliseconds getUTCDate getUTCDay
  getUTCMonth getUTCFullYear getUTCHours getUTCMinutes getUTCSeconds getUTCMilliseconds toISOString toJSON
  now UTC parse stringify isArray isInteger isSafeInteger isFinite isNaN parseInt parseFloat
  hasOwn is fromEntries groupBy getPrototypeOf of from
  abs ceil floor round trunc min max sign sqrt pow log log2 log10 random`);

/** Names that change what they are called on or given: not even to be passed on. */
const CHANGING = words(`
  push pop shift unshift splice sort reverse fill copyWithin set add clear delete assign defineProperty
  defineProperties setPrototypeOf deleteProperty apply call bind`);
