import { invalid, quoted, textOf, ValidationError, type ValidationIssue } from './errors.ts';

/** Converts data to a body, and back. */
export interface Codec<T> {
  /** The content type of encoded elements. */
  readonly contentType: string;
  encode(data: T): string | Uint8Array;
  decode(body: Uint8Array, contentType: string | null): T;
}

/** Standard Schema version 1, as implemented by zod, valibot and others: https://standardschema.dev */
export interface StandardSchema<Input = unknown, Output = Input> {
  readonly '~standard': {
    readonly version: 1;
    readonly vendor: string;
    readonly validate: (value: unknown) => ValidationResult<Output> | Promise<ValidationResult<Output>>;
    readonly types?: { readonly input: Input; readonly output: Output } | undefined;
  };
}

export type ValidationResult<Output> =
  | { readonly value: Output; readonly issues?: undefined }
  | { readonly issues: readonly ValidationIssue[] };

export type SchemaInput<S extends StandardSchema> = NonNullable<S['~standard']['types']>['input'];
export type SchemaOutput<S extends StandardSchema> = NonNullable<S['~standard']['types']>['output'];

/** A body to send. `json` is a JSON string. */
export type EncodedBody =
  | { readonly json: string; readonly contentType?: undefined }
  | { readonly body: string | Uint8Array; readonly contentType: string };

/** Encodes and decodes the data of a queue's elements. */
export interface DataCodec {
  encode(data: unknown): EncodedBody | Promise<EncodedBody>;
  decode(body: ReceivedBody): unknown;
}

/** A body received from the server. `text` is null if the bytes are not UTF-8. */
interface ReceivedBody {
  readonly text: string | null;
  readonly bytes: Uint8Array;
  readonly contentType: string | null;
}

const JSON_TYPE = /^application\/(?:[^;]*\+)?json *(?:;|$)/i;

/** Data are JSON; a `Uint8Array` or an `ArrayBuffer` is sent as bytes. */
export const JSON_DATA: DataCodec = {
  encode(data) {
    const body = data instanceof ArrayBuffer ? new Uint8Array(data) : data;
    if (body instanceof Uint8Array) return { body, contentType: 'application/octet-stream' };
    let json: string | undefined;
    let cause: unknown;
    try {
      json = JSON.stringify(data);
    } catch (error) {
      cause = error;
    }
    if (json !== undefined) return { json };
    const why = cause instanceof Error ? ` (${cause.message})` : '';
    throw invalid(
      `${typeof data} cannot be sent as JSON${why}. Allowed: what JSON.stringify takes, or a Uint8Array.`,
      cause,
    );
  },
  decode({ text, bytes, contentType }) {
    if (text === null) return bytes;
    if (contentType !== null && JSON_TYPE.test(contentType)) {
      try {
        // `trimStart` also removes a byte order mark, which some programs write.
        return JSON.parse(text.trimStart());
      } catch (cause) {
        throw invalid(`The body ${quoted(text)} of content type ${quoted(contentType)} is not JSON.`, cause);
      }
    }
    return contentType?.toLowerCase().startsWith('text/') ? text : bytes;
  },
};

export function dataCodecOf<T>(codec: Codec<T>): DataCodec {
  return {
    encode: (data) => ({ body: codec.encode(data as T), contentType: codec.contentType }),
    decode({ bytes, contentType }) {
      try {
        return codec.decode(bytes, contentType);
      } catch (cause) {
        throw invalid(`The codec does not decode the body: ${textOf(cause)}`, cause);
      }
    },
  };
}

/** A JSON codec that checks data against a schema, before an insert and after a take. */
export function checkedBy({ '~standard': standard }: StandardSchema): DataCodec {
  // JavaScript callers may pass a schema of a library that does not implement it, or of an old version.
  if (!standard) throw invalid('The schema has no "~standard". Allowed: a Standard Schema.');
  const checked = async (value: unknown): Promise<unknown> => {
    const result = await standard.validate(value);
    if (result.issues === undefined) return result.value;
    throw new ValidationError(
      `The data do not match the schema: ${result.issues.map(issueText).join('; ')}`,
      result.issues,
    );
  };
  return {
    // Send the input, not the transformed output: the consumer validates and transforms it again.
    encode: async (data) => {
      await checked(data);
      return JSON_DATA.encode(data);
    },
    decode: async (body) => checked(JSON_DATA.decode(body)),
  };
}

function issueText({ message, path = [] }: ValidationIssue): string {
  const keys = path.map((part) => String(typeof part === 'object' ? part.key : part));
  return keys.length === 0 ? message : `${keys.join('.')}: ${message}`;
}
