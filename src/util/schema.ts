/**
 * The subset of JSON Schema that this project uses: built with TypeScript types, for OpenAPI, the bodies of requests
 * and the configuration, and checked by {@link checkSchema}. A full JSON Schema library accounted for most of the
 * files loaded at start.
 */

import { isRecord } from './is-record.ts';

declare const VALUE: unique symbol;
const OPTIONAL = Symbol('optional');
const REFINEMENT = Symbol('refinement');

/** What the keywords of a schema cannot express about its values. OpenAPI does not contain it. */
interface Refinement<T> {
  /** Describes what is allowed, to continue "must be". Not given: see {@link allowedText}. */
  readonly allowed?: string;
  /**
   * Whether a value of the type of the schema is allowed. It takes the place of the bounds and of the check of members:
   * the keywords then only document.
   */
  readonly fits?: (value: T) => boolean;
  /** The error for a value that does not fit. Not given: one that follows from `allowed`. */
  readonly error?: (path: string, value: T) => Error;
}

/** A JSON Schema whose values have the type `T`. */
export interface Schema<T = unknown> {
  /** Exists in the type only, to carry `T`. */
  readonly [VALUE]?: T;
  readonly [OPTIONAL]?: true;
  readonly [REFINEMENT]?: Refinement<never>;
  readonly type?: string;
  readonly description?: string;
  readonly default?: unknown;
  readonly format?: string;
  readonly const?: unknown;
  readonly enum?: readonly unknown[];
  readonly properties?: Properties;
  readonly required?: readonly string[];
  /** The schema of a map: one entry, whose pattern matches every key. */
  readonly patternProperties?: Properties;
  readonly additionalProperties?: boolean;
  readonly items?: Schema;
  readonly anyOf?: readonly Schema[];
  readonly allOf?: readonly Schema[];
  readonly minimum?: number;
  readonly maximum?: number;
  readonly exclusiveMinimum?: number;
  readonly minLength?: number;
  readonly maxLength?: number;
  readonly pattern?: string;
  readonly minItems?: number;
  readonly maxItems?: number;
  readonly minProperties?: number;
  readonly maxProperties?: number;
  /** Of options of the configuration, see `config/options.ts`. */
  readonly secret?: 'whole' | 'in-url';
  readonly path?: 'whole' | 'in-url';
  readonly hint?: string;
}

export type Properties = Readonly<Record<string, Schema>>;

/** A member that may be absent. */
export type OptionalSchema<T> = Schema<T> & { readonly [OPTIONAL]: true };

/** The type of the values of a schema. */
export type Static<S> = S extends Schema<infer T> ? T : never;

type OptionalKeys<P> = { [K in keyof P]: P[K] extends { readonly [OPTIONAL]: true } ? K : never }[keyof P];
type ObjectOf<P> = Flat<
  { [K in Exclude<keyof P, OptionalKeys<P>>]: Static<P[K]> } & { [K in OptionalKeys<P>]?: Static<P[K]> }
>;
type Flat<T> = { [K in keyof T]: T[K] };
type All<S> = S extends readonly [infer First, ...infer Rest] ? Static<First> & All<Rest> : unknown;

/** Further keywords: `default`, `description`, bounds, and the project's own. */
type Keywords = Readonly<Record<string, unknown>>;

const EVERY_KEY = '^.*$';

/** Builders, named after JSON Schema's types and keywords. The last parameter adds keywords. */
export const Type = {
  String: (keywords: Keywords = {}): Schema<string> => ({ type: 'string', ...keywords }),
  Integer: (keywords: Keywords = {}): Schema<number> => ({ type: 'integer', ...keywords }),
  Number: (keywords: Keywords = {}): Schema<number> => ({ type: 'number', ...keywords }),
  Boolean: (keywords: Keywords = {}): Schema<boolean> => ({ type: 'boolean', ...keywords }),
  Null: (): Schema<null> => ({ type: 'null' }),
  Unknown: (keywords: Keywords = {}): Schema<unknown> => ({ ...keywords }),
  Literal: <const T extends string | boolean>(value: T, keywords: Keywords = {}): Schema<T> => ({
    type: typeof value,
    const: value,
    ...keywords,
  }),
  Enum: <const T extends string>(values: readonly T[], keywords: Keywords = {}): Schema<T> => ({
    enum: values,
    ...keywords,
  }),
  Array: <T>(items: Schema<T>, keywords: Keywords = {}): Schema<readonly T[]> => ({
    type: 'array',
    items,
    ...keywords,
  }),
  /** A map with keys of any name. */
  Record: <T>(values: Schema<T>, keywords: Keywords = {}): Schema<Readonly<Record<string, T>>> => ({
    type: 'object',
    patternProperties: { [EVERY_KEY]: values },
    ...keywords,
  }),
  Object: <P extends Properties>(properties: P, keywords: Keywords = {}): Schema<ObjectOf<P>> => {
    const required = Object.keys(properties).filter((key) => properties[key]?.[OPTIONAL] !== true);
    return { type: 'object', ...(required.length > 0 && { required }), properties, ...keywords };
  },
  Optional: <T>(schema: Schema<T>): OptionalSchema<T> => ({ ...schema, [OPTIONAL]: true }),
  Union: <const S extends readonly Schema[]>(
    anyOf: S,
    keywords: Keywords = {},
  ): Schema<Static<S[number]>> => ({
    anyOf,
    ...keywords,
  }),
  Intersect: <const S extends readonly Schema[]>(allOf: S): Schema<All<S>> => ({ allOf }),
} as const;

/** Names a schema in `/openapi.json`, so that generated clients have a type for it. */
export function named<S extends Schema>($id: string, schema: S): S {
  return Object.assign(schema, { $id });
}

/** The schema of an object that is named in `/openapi.json`. */
export function namedObject<P extends Properties>(
  id: string,
  members: P,
  keywords?: Keywords,
): Schema<ObjectOf<P>> {
  return named(id, Type.Object(members, keywords));
}

/** What a schema describes, or null. */
export function orNull<T>(schema: Schema<T>, keywords?: Keywords): Schema<T | null> {
  return Type.Union([schema, Type.Null()], keywords);
}

/**
 * A member that may be left out, or be null, which means the same. Messages do not mention null: to leave it out is the
 * better advice.
 */
export function optional<T>(schema: Schema<T>): OptionalSchema<T | null> {
  return Type.Optional(refined(orNull(schema), { allowed: allowedText(schema) }));
}

/** Adds to a schema what its keywords cannot express. */
export function refined<T>(schema: Schema<T>, refinement: Refinement<T>): Schema<T> {
  return { ...schema, [REFINEMENT]: { ...schema[REFINEMENT], ...refinement } as Refinement<never> };
}

/** Adds to a schema how error messages describe what it allows. */
export function allowing<T>(allowed: string, schema: Schema<T>): Schema<T> {
  return refined(schema, { allowed });
}

/** Adds the unit of a number to what error messages say. */
export function inUnit(unit: string, schema: Schema<number>): Schema<number> {
  return allowing(`${unit}, ${allowedText(schema)}`, schema);
}

export const Count = Type.Integer({ minimum: 0 });
export const Moment = Type.String({ format: 'date-time' });

type Rule = 'missing' | 'unknown' | 'pattern' | 'length' | 'other';

/** A place in a value where it does not have the form of its schema. */
export interface Violation {
  /** Keys and indexes. Those of `missing` and `unknown` include the key in question. */
  readonly path: readonly (string | number)[];
  readonly rule: Rule;
  /** What is allowed there. Of an unknown member: the schema of the object. */
  readonly schema: Schema;
  /** Undefined: missing. */
  readonly value: unknown;
  /** The error that the refinement of the schema creates for this value, given the path as text. */
  readonly error?: ((path: string, value: never) => Error) | undefined;
}

/** Returns all violations in a value, each once. Below a value of the wrong type nothing is checked. */
export function schemaErrors(schema: Schema, value: unknown): Violation[] {
  const violations: Violation[] = [];
  checkSchema(schema, value, (violation) => violations.push(violation));
  return violations;
}

/**
 * Calls `report` for each violation in a value: for those of the members of an object in the order of its members, then
 * for missing ones. `report` may throw to end the check.
 */
export function checkSchema(schema: Schema, value: unknown, report: (violation: Violation) => void): void {
  checkOf(schema)(value, { path: [], depth: 0, report });
}

interface Visit {
  /** The keys and indexes of the value that is checked: the first `depth` ones. */
  readonly path: (string | number)[];
  depth: number;
  readonly report: (violation: Violation) => void;
}

/**
 * Checks a value. A schema is turned into such functions when it is first used: reading its keywords for each value
 * took as long as all the rest of reading a line of an insert.
 */
type Check = (value: unknown, at: Visit) => void;

const CHECKS = new WeakMap<Schema, Check>();

function checkOf(schema: Schema): Check {
  let check = CHECKS.get(schema);
  if (check === undefined) {
    check = createCheck(schema, schema);
    CHECKS.set(schema, check);
  }
  return check;
}

/** @param shown the schema that describes what is allowed: the union, if `schema` is one of its alternatives */
function createCheck(schema: Schema, shown: Schema): Check {
  if (schema.anyOf !== undefined) return unionCheck(schema.anyOf, shown);
  const isAllowed = allowedTest(schema);
  const checkMembers = schema[REFINEMENT]?.fits === undefined ? membersCheck(schema) : null;
  return (value, at) => {
    if (isAllowed(value)) checkMembers?.(value as never, at);
    else reportWrong(schema, shown, value, at);
  };
}

function reportWrong(schema: Schema, shown: Schema, value: unknown, at: Visit): void {
  const { fits, error } = schema[REFINEMENT] ?? {};
  const hasType = typeTest(schema)(value);
  const rule = hasType && fits === undefined ? boundRule(schema) : 'other';
  at.report({ path: pathOf(at), rule, schema: shown, value, ...(hasType && error && { error }) });
}

/** The rule that a value of the right type breaks. */
function boundRule({ type, pattern }: Schema): Rule {
  if (pattern !== undefined) return 'pattern';
  return type === 'string' || type === 'array' || type === 'object' ? 'length' : 'other';
}

/**
 * Checks the alternative that has the type of the value. If several alternatives have the same type, one of all must
 * fit as a whole.
 */
function unionCheck(anyOf: readonly Schema[], shown: Schema): Check {
  const [other, ...more] = anyOf.filter(({ type }) => type !== 'null');
  if (anyOf.length === 2 && other !== undefined && more.length === 0) {
    const check = createCheck(other, shown);
    return (value, at) => {
      if (value !== null) check(value, at);
    };
  }
  const checks = new Map(anyOf.map((one) => [one.type, createCheck(one, shown)]));
  if (checks.size === anyOf.length && !checks.has(undefined)) {
    return (value, at) => {
      const check =
        checks.get(typeOf(value)) ?? (typeof value === 'number' ? checks.get('integer') : undefined);
      if (check !== undefined) check(value, at);
      else reportWrong(shown, shown, value, at);
    };
  }
  return (value, at) => {
    if (!anyOf.some((one) => fitsSchema(one, value))) reportWrong(shown, shown, value, at);
  };
}

function typeOf(value: unknown): string {
  if (typeof value !== 'object') return typeof value;
  return value === null ? 'null' : Array.isArray(value) ? 'array' : 'object';
}

function pathOf({ path, depth }: Visit): (string | number)[] {
  return path.slice(0, depth);
}

function checkMember(check: Check, value: unknown, key: string | number, at: Visit): void {
  at.path[at.depth] = key;
  at.depth += 1;
  check(value, at);
  at.depth -= 1;
}

/** Checks the items of an array or the members of an object; null: there is nothing to check. */
function membersCheck(schema: Schema): ((value: never, at: Visit) => void) | null {
  const { items, properties = {}, patternProperties = {}, required = [], additionalProperties } = schema;
  if (items !== undefined) {
    const check = checkOf(items);
    return (values: readonly unknown[], at: Visit) => {
      for (let i = 0; i < values.length; i += 1) checkMember(check, values[i], i, at);
    };
  }
  const checks = new Map(Object.entries(properties).map(([key, member]) => [key, checkOf(member)]));
  const [entry] = Object.values(patternProperties);
  const checkOther = entry && checkOf(entry);
  if (checks.size === 0 && checkOther === undefined && additionalProperties !== false) return null;
  return (members: Readonly<Record<string, unknown>>, at: Visit) => {
    for (const key of Object.keys(members)) {
      const check = checks.get(key) ?? checkOther;
      if (check !== undefined) checkMember(check, members[key], key, at);
      else if (additionalProperties === false) {
        at.report({ path: [...pathOf(at), key], rule: 'unknown', schema, value: members[key] });
      }
    }
    for (const key of required) {
      if (Object.hasOwn(members, key)) continue;
      const path = [...pathOf(at), key];
      at.report({ path, rule: 'missing', schema: properties[key] ?? {}, value: undefined });
    }
  };
}

/** Whether a value has the form of a schema. */
export function fitsSchema(schema: Schema, value: unknown): boolean {
  return schemaErrors(schema, value).length === 0;
}

const TYPE_TESTS: Readonly<Record<string, (value: unknown) => boolean>> = {
  string: (value) => typeof value === 'string',
  boolean: (value) => typeof value === 'boolean',
  integer: Number.isSafeInteger,
  number: Number.isFinite,
  null: (value) => value === null,
  array: Array.isArray,
  object: isRecord,
};

/** Returns a test whether a value has the type of a schema, without its bounds and members. */
function typeTest({ type, const: literal, enum: values, allOf }: Schema): (value: unknown) => boolean {
  const hasType = (type === undefined ? undefined : TYPE_TESTS[type]) ?? (() => true);
  if (literal !== undefined) return (value) => value === literal;
  if (values !== undefined) return (value) => values.includes(value);
  if (allOf !== undefined) return (value) => hasType(value) && allOf.every((part) => fitsSchema(part, value));
  return hasType;
}

/** Returns a test whether a value is allowed, without its members. */
function allowedTest(schema: Schema): (value: unknown) => boolean {
  const hasType = typeTest(schema);
  const test = schema[REFINEMENT]?.fits ?? boundsTest(schema);
  return test === null ? hasType : (value) => hasType(value) && test(value as never);
}

/** Returns a test of the bounds of values that have the type of the schema; null: it has none. */
function boundsTest(schema: Schema): ((value: never) => boolean) | null {
  const { minimum = LOWEST, maximum = HIGHEST, exclusiveMinimum = LOWEST } = schema;
  const { minLength = 0, maxLength = HIGHEST, minItems = 0, maxItems = HIGHEST } = schema;
  const { minProperties = 0, maxProperties = HIGHEST } = schema;
  switch (schema.type) {
    case 'integer':
    case 'number':
      return (value: number) => value >= minimum && value <= maximum && value > exclusiveMinimum;
    case 'string': {
      const pattern = schema.pattern === undefined ? null : new RegExp(schema.pattern, 'u');
      if (pattern === null && minLength === 0 && maxLength === HIGHEST) return null;
      return (value: string) =>
        value.length >= minLength && value.length <= maxLength && (pattern === null || pattern.test(value));
    }
    case 'array':
      return ({ length }: readonly unknown[]) => length >= minItems && length <= maxItems;
    case 'object':
      if (minProperties === 0 && maxProperties === HIGHEST) return null;
      return (value: object) => {
        const { length } = Object.keys(value);
        return length >= minProperties && length <= maxProperties;
      };
    default:
      return null;
  }
}

const LOWEST = Number.NEGATIVE_INFINITY;
const HIGHEST = Number.POSITIVE_INFINITY;

/** Describes the values that a schema allows, to continue "must be". */
export function allowedText(schema: Schema): string {
  const text = schema[REFINEMENT]?.allowed;
  if (text !== undefined) return text;
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum !== undefined)
    return schema.enum.length === 1 ? `${schema.enum[0]}` : `one of ${schema.enum.join(', ')}`;
  if (schema.anyOf !== undefined) {
    const texts = schema.anyOf.filter(({ type }) => type !== 'null').map(allowedText);
    return texts.join(' or ') + (texts.length < schema.anyOf.length ? ', or null' : '');
  }
  switch (schema.type) {
    case 'integer':
      return `a whole number${rangeText(schema)}`;
    case 'number':
      return `a number${rangeText(schema)}`;
    case 'boolean':
      return 'true or false';
    case 'null':
      return 'null';
    case 'array':
      return schema.maxItems === undefined
        ? 'an array'
        : `an array of ${schema.minItems ?? 0} to ${schema.maxItems}`;
    case 'object':
      return schema.maxProperties === undefined
        ? 'a JSON object'
        : `a JSON object of at most ${schema.maxProperties} members`;
    default:
      return `a string${lengthText(schema)}`;
  }
}

function lengthText({ minLength = 0, maxLength }: Schema): string {
  if (maxLength !== undefined) return ` of ${minLength} to ${maxLength} characters`;
  return minLength > 1 ? ` of at least ${minLength} characters` : '';
}

function rangeText({ minimum, maximum, exclusiveMinimum }: Schema): string {
  const from = minimum === undefined ? '' : ` from ${minimum}`;
  const low = exclusiveMinimum === undefined ? from : ` above ${exclusiveMinimum}`;
  return maximum === undefined ? low : `${low} to ${maximum}`;
}
