/**
 * The subset of JSON Schema that this project uses: built with TypeScript types, for OpenAPI and the configuration, and
 * checked by {@link schemaErrors}. A full JSON Schema library accounted for most of the files loaded at start.
 */

import { isRecord } from './is-record.ts';

declare const VALUE: unique symbol;
const OPTIONAL = Symbol('optional');

/** A JSON Schema whose values have the type `T`. */
export interface Schema<T = unknown> {
  /** Exists in the type only, to carry `T`. */
  readonly [VALUE]?: T;
  readonly [OPTIONAL]?: true;
  readonly type?: string;
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
  Intersect: <const S extends readonly Schema[]>(allOf: S, keywords: Keywords = {}): Schema<All<S>> => ({
    allOf,
    ...keywords,
  }),
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

export const Count = Type.Integer({ minimum: 0 });
export const Moment = Type.String({ format: 'date-time' });

/** A violation of the schema. The path of `missing` and `unknown` includes the key in question. */
export interface SchemaError {
  readonly path: readonly string[];
  readonly rule: 'missing' | 'unknown' | 'pattern' | 'other';
}

/** Returns all violations in a value, each once. Below a value of the wrong type nothing is checked. */
export function schemaErrors(schema: Schema, value: unknown, path: readonly string[] = []): SchemaError[] {
  if (typeof value === 'string') return stringErrors(schema, value, path);
  const isValid = fitsType(schema, value) && fitsBounds(schema, value);
  if (!isValid) return [{ path, rule: 'other' }];
  if (Array.isArray(value)) {
    const { items = {} } = schema;
    return value.flatMap((item, i) => schemaErrors(items, item, [...path, String(i)]));
  }
  if (typeof value !== 'object' || value === null) return [];
  return memberErrors(schema, value as Readonly<Record<string, unknown>>, path);
}

function stringErrors(schema: Schema, value: string, path: readonly string[]): SchemaError[] {
  const { minLength = 0, maxLength = Number.POSITIVE_INFINITY, pattern } = schema;
  const isValid = fitsType(schema, value) && value.length >= minLength && value.length <= maxLength;
  if (!isValid) return [{ path, rule: 'other' }];
  return pattern === undefined || new RegExp(pattern, 'u').test(value) ? [] : [{ path, rule: 'pattern' }];
}

function memberErrors(
  { properties = {}, patternProperties = {}, required = [], additionalProperties = true }: Schema,
  value: Readonly<Record<string, unknown>>,
  path: readonly string[],
): SchemaError[] {
  const [mapSchema] = Object.values(patternProperties);
  const missing = required.filter((key) => !Object.hasOwn(value, key));
  return [
    ...missing.map((key): SchemaError => ({ path: [...path, key], rule: 'missing' })),
    ...Object.entries(value).flatMap(([key, member]): SchemaError[] => {
      const memberPath = [...path, key];
      const schema = Object.hasOwn(properties, key) ? properties[key] : mapSchema;
      if (schema !== undefined) return schemaErrors(schema, member, memberPath);
      return additionalProperties ? [] : [{ path: memberPath, rule: 'unknown' }];
    }),
  ];
}

function fitsType(schema: Schema, value: unknown): boolean {
  const { const: literal = value, enum: values = [value], anyOf, allOf = [] } = schema;
  const fits = (part: Schema): boolean => schemaErrors(part, value).length === 0;
  if (value !== literal || !values.includes(value) || !allOf.every(fits)) return false;
  if (anyOf !== undefined && !anyOf.some(fits)) return false;
  switch (schema.type) {
    case undefined:
      return true;
    case 'integer':
      return Number.isInteger(value);
    case 'number':
      return Number.isFinite(value);
    case 'null':
      return value === null;
    case 'array':
      return Array.isArray(value);
    case 'object':
      return isRecord(value);
    default:
      return typeof value === schema.type;
  }
}

function fitsBounds(schema: Schema, value: unknown): boolean {
  if (typeof value === 'number') {
    const { minimum = value, maximum = value, exclusiveMinimum = Number.NEGATIVE_INFINITY } = schema;
    return value >= minimum && value <= maximum && value > exclusiveMinimum;
  }
  if (Array.isArray(value)) {
    const { minItems = 0, maxItems = value.length } = schema;
    return value.length >= minItems && value.length <= maxItems;
  }
  const { minProperties = 0 } = schema;
  return typeof value !== 'object' || value === null || Object.keys(value).length >= minProperties;
}
