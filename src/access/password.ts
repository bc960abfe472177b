import { argon2, hash, randomBytes, timingSafeEqual } from 'node:crypto';
import { promisify } from 'node:util';
import { CONTROL } from '../model/names.ts';

/** Longer passwords and user names are rejected. Truncating them could make two different ones equal. */
export const PASSWORD_BYTES = 256;

const SALT_BYTES = 16;
const HASH_BYTES = 32;

const argon2Async = promisify(argon2);

/** A configured password: an argon2id hash, or the digest of a plain password, which is not kept in memory. */
export type StoredPassword =
  | { readonly kind: 'hash'; readonly argon2: Argon2Hash }
  | { readonly kind: 'plain'; readonly digest: Buffer };

/**
 * Parses a configured password: a PHC string or a plain password.
 * @throws Error that describes the problem without quoting the password
 */
export function readStoredPassword(stored: string): StoredPassword {
  if (looksLikeHash(stored)) return { kind: 'hash', argon2: parsePhc(stored) };
  checkPassword(stored);
  return { kind: 'plain', digest: digest(Buffer.from(stored)) };
}

/** A string that identifies a stored password. Keys derived from it become invalid when the password changes. */
export function passwordText(stored: StoredPassword): string {
  return stored.kind === 'hash' ? formatPhc(stored.argon2) : stored.digest.toString('base64');
}

/** @throws Error, without quoting the password, if no client could log in with it */
function checkPassword(password: string): void {
  if (password === '') throw new Error('is empty');
  if (Buffer.byteLength(password) > PASSWORD_BYTES) throw new Error(`is longer than ${PASSWORD_BYTES} bytes`);
  // RFC 7617 forbids them.
  if (CONTROL.test(password)) throw new Error('has a control character, which no client can send');
}

/** Returns the PHC string of a new password. @throws Error if no client could log in with it */
export async function hashPassword(password: string): Promise<string> {
  checkPassword(password);
  const message = Buffer.from(password);
  const salt = randomBytes(SALT_BYTES);
  return formatPhc({
    ...DEFAULT_COST,
    salt,
    hash: await derive(message, { ...DEFAULT_COST, salt }, HASH_BYTES),
  });
}

/** A random hash that matches no password, verified in place of the hash of an unknown user. */
export function decoyHash(cost: Argon2Cost): Argon2Hash {
  return { ...cost, salt: randomBytes(SALT_BYTES), hash: randomBytes(HASH_BYTES) };
}

/**
 * Whether the candidate is the stored password; `stored` is null for an unknown user. Every call derives exactly one
 * argon2id hash, with the decoy's cost if nothing else is stored, and compares in constant time, so that timing does
 * not reveal which users exist.
 */
export async function passwordMatches(
  candidate: Buffer,
  stored: StoredPassword | null,
  decoy: Argon2Hash,
): Promise<boolean> {
  const reference = stored?.kind === 'hash' ? stored.argon2 : decoy;
  const derived = await derive(candidate, reference, reference.hash.length);
  const sameHash = timingSafeEqual(derived, reference.hash);
  const samePlain = timingSafeEqual(
    digest(candidate),
    stored?.kind === 'plain' ? stored.digest : digest(decoy.hash),
  );
  return stored?.kind === 'plain' ? samePlain : stored !== null && sameHash;
}

function derive(message: Buffer, cost: Argon2Cost & { salt: Buffer }, tagLength: number): Promise<Buffer> {
  return argon2Async('argon2id', {
    message,
    nonce: cost.salt,
    memory: cost.memoryKiB,
    passes: cost.passes,
    parallelism: cost.parallelism,
    tagLength,
  });
}

function digest(bytes: Buffer): Buffer {
  return hash('sha256', bytes, 'buffer');
}

/**
 * The cost parameters of argon2id. In the PHC string of a hash, they are `m`, `t` and `p`:
 * `$argon2id$v=19$m=19456,t=2,p=1$<salt>$<hash>`, salt and hash in base64 without padding.
 */
interface Argon2Cost {
  readonly memoryKiB: number;
  readonly passes: number;
  readonly parallelism: number;
}

export interface Argon2Hash extends Argon2Cost {
  readonly salt: Buffer;
  readonly hash: Buffer;
}

/** Cost of new hashes: the lowest that OWASP recommends for a parallelism of one. */
export const DEFAULT_COST: Argon2Cost = { memoryKiB: 19_456, passes: 2, parallelism: 1 };

/** Minimum memory by number of passes; each row costs an attacker about the same (OWASP password storage). */
const MIN_MEMORY_KIB: readonly { readonly passes: number; readonly memoryKiB: number }[] = [
  { passes: 5, memoryKiB: 7_168 },
  { passes: 4, memoryKiB: 9_216 },
  { passes: 3, memoryKiB: 12_288 },
  { passes: 2, memoryKiB: 19_456 },
  { passes: 1, memoryKiB: 47_104 },
];

/** Maximum accepted cost, so that a login cannot exhaust the server; two hashes may run at once. */
const MAX_COST = { memoryKiB: 262_144, passes: 16, parallelism: 4 };
const SALT_RANGE = { least: 8, most: 64 };
const HASH_RANGE = { least: 16, most: 64 };

const PHC = /^\$argon2id\$v=19\$m=(\d{1,9}),t=(\d{1,9}),p=(\d{1,9})\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)$/;

/** Whether a configured password looks like a hash of any kind; it is then never treated as a plain password. */
export function looksLikeHash(stored: string): boolean {
  return /^\$[a-z0-9-]+\$/i.test(stored);
}

/** @throws Error that describes the problem without quoting the hash */
function parsePhc(text: string): Argon2Hash {
  const found = PHC.exec(text);
  if (found === null) {
    throw new Error('is not an argon2id hash of the form $argon2id$v=19$m=…,t=…,p=…$salt$hash');
  }
  const [, memory, passes, parallelism, salt = '', hash = ''] = found;
  const cost = { memoryKiB: Number(memory), passes: Number(passes), parallelism: Number(parallelism) };
  checkCost(cost);
  return {
    ...cost,
    salt: decode('salt', salt, SALT_RANGE),
    hash: decode('hash', hash, HASH_RANGE),
  };
}

function formatPhc({ memoryKiB, passes, parallelism, salt, hash }: Argon2Hash): string {
  return `$argon2id$v=19$m=${memoryKiB},t=${passes},p=${parallelism}$${encode(salt)}$${encode(hash)}`;
}

function checkCost({ memoryKiB, passes, parallelism }: Argon2Cost): void {
  const minimum = MIN_MEMORY_KIB.find((least) => passes >= least.passes);
  if (minimum === undefined || parallelism < 1 || memoryKiB < minimum.memoryKiB) {
    throw new Error(
      `is too weak: m=${memoryKiB},t=${passes},p=${parallelism} is below m=${DEFAULT_COST.memoryKiB},t=${DEFAULT_COST.passes},p=1`,
    );
  }
  if (memoryKiB > MAX_COST.memoryKiB || passes > MAX_COST.passes || parallelism > MAX_COST.parallelism) {
    throw new Error(
      `costs too much to check: at most m=${MAX_COST.memoryKiB},t=${MAX_COST.passes},p=${MAX_COST.parallelism}`,
    );
  }
  if (memoryKiB < 8 * parallelism) throw new Error('has less memory than eight times its parallelism');
}

function decode(part: string, text: string, bytes: { least: number; most: number }): Buffer {
  const decoded = Buffer.from(text, 'base64');
  if (encode(decoded) !== text) throw new Error(`has a ${part} that is not base64 without padding`);
  if (decoded.length < bytes.least || decoded.length > bytes.most) {
    throw new Error(`has a ${part} of ${decoded.length} bytes; allowed are ${bytes.least} to ${bytes.most}`);
  }
  return decoded;
}

function encode(bytes: Buffer): string {
  return bytes.toString('base64').replace(/=+$/, '');
}
