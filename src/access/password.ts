import { argon2, hash, randomBytes, timingSafeEqual } from 'node:crypto';
import { promisify } from 'node:util';
import { type Argon2Cost, type Argon2Hash, DEFAULT_COST, formatPhc, looksLikeHash, parsePhc } from './phc.ts';

/** Longer passwords are refused, never cut (reliability, S5). */
export const PASSWORD_BYTES = 256;

const SALT_BYTES = 16;
const HASH_BYTES = 32;

const argon2Async = promisify(argon2);

/** A password as configured: its hash, or the password itself as a digest, so that it is not kept in the clear. */
export type StoredPassword =
  | { readonly kind: 'hash'; readonly argon2: Argon2Hash }
  | { readonly kind: 'plain'; readonly digest: Buffer };

/**
 * Reads a configured password: a PHC string or a plain password.
 * @throws Error that says what is wrong, without the password
 */
export function readStoredPassword(stored: string): StoredPassword {
  if (looksLikeHash(stored)) return { kind: 'hash', argon2: parsePhc(stored) };
  if (stored === '') throw new Error('is empty');
  if (Buffer.byteLength(stored) > PASSWORD_BYTES) throw new Error(`is longer than ${PASSWORD_BYTES} bytes`);
  return { kind: 'plain', digest: digest(Buffer.from(stored)) };
}

/** Makes the PHC string of a new password. @throws Error where it is empty or too long */
export async function hashPassword(password: string): Promise<string> {
  const message = Buffer.from(password);
  if (message.length === 0) throw new Error('is empty');
  if (message.length > PASSWORD_BYTES) throw new Error(`is longer than ${PASSWORD_BYTES} bytes`);
  const salt = randomBytes(SALT_BYTES);
  return formatPhc({
    ...DEFAULT_COST,
    salt,
    hash: await derive(message, { ...DEFAULT_COST, salt }, HASH_BYTES),
  });
}

/** A hash that no password has, to be checked for users that do not exist. */
export function decoyHash(cost: Argon2Cost): Argon2Hash {
  return { ...cost, salt: randomBytes(SALT_BYTES), hash: randomBytes(HASH_BYTES) };
}

/**
 * Whether the candidate is the stored password; null stands for a user that does not exist. Every case
 * derives one argon2id hash, the decoy's where there is none, and compares in constant time, so that the
 * time taken says nothing about who exists (reliability, S3).
 */
export async function passwordMatches(
  candidate: Buffer,
  stored: StoredPassword | null,
  decoy: Argon2Hash,
): Promise<boolean> {
  const against = stored?.kind === 'hash' ? stored.argon2 : decoy;
  const derived = await derive(candidate, against, against.hash.length);
  const sameHash = timingSafeEqual(derived, against.hash);
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
