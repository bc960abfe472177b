/**
 * The PHC string form of an argon2id hash: `$argon2id$v=19$m=19456,t=2,p=1$<salt>$<hash>`, both parts in
 * base64 without padding (reliability, S1).
 */
export interface Argon2Cost {
  readonly memoryKiB: number;
  readonly passes: number;
  readonly parallelism: number;
}

export interface Argon2Hash extends Argon2Cost {
  readonly salt: Buffer;
  readonly hash: Buffer;
}

/** What new hashes are made with: the lowest cost that OWASP names for a parallelism of one. */
export const DEFAULT_COST: Argon2Cost = { memoryKiB: 19_456, passes: 2, parallelism: 1 };

/** Fewer passes ask for more memory; each row costs an attacker about the same (OWASP password storage). */
const LEAST_MEMORY_KIB: readonly { readonly passes: number; readonly memoryKiB: number }[] = [
  { passes: 5, memoryKiB: 7_168 },
  { passes: 4, memoryKiB: 9_216 },
  { passes: 3, memoryKiB: 12_288 },
  { passes: 2, memoryKiB: 19_456 },
  { passes: 1, memoryKiB: 47_104 },
];

/** A hash that costs more than this would let a login stop the server; two may run at once. */
const MOST = { memoryKiB: 262_144, passes: 16, parallelism: 4 };
const SALT_BYTES = { least: 8, most: 64 };
const HASH_BYTES = { least: 16, most: 64 };

const PHC = /^\$argon2id\$v=19\$m=(\d{1,9}),t=(\d{1,9}),p=(\d{1,9})\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)$/;

/** Whether a stored password is meant as a hash of any kind, and so never as the password itself. */
export function looksLikeHash(stored: string): boolean {
  return /^\$[a-z0-9-]+\$/i.test(stored);
}

/** @throws Error that says what is wrong with the hash; it never quotes it */
export function parsePhc(text: string): Argon2Hash {
  const found = PHC.exec(text);
  if (found === null) {
    throw new Error('is not an argon2id hash of the form $argon2id$v=19$m=…,t=…,p=…$salt$hash');
  }
  const [, memory, passes, parallelism, salt = '', hash = ''] = found;
  const cost = { memoryKiB: Number(memory), passes: Number(passes), parallelism: Number(parallelism) };
  checkCost(cost);
  return {
    ...cost,
    salt: decode('salt', salt, SALT_BYTES),
    hash: decode('hash', hash, HASH_BYTES),
  };
}

export function formatPhc({ memoryKiB, passes, parallelism, salt, hash }: Argon2Hash): string {
  return `$argon2id$v=19$m=${memoryKiB},t=${passes},p=${parallelism}$${encode(salt)}$${encode(hash)}`;
}

function checkCost({ memoryKiB, passes, parallelism }: Argon2Cost): void {
  const row = LEAST_MEMORY_KIB.find((least) => passes >= least.passes);
  if (row === undefined || parallelism < 1 || memoryKiB < row.memoryKiB) {
    throw new Error(
      `is too weak: m=${memoryKiB},t=${passes},p=${parallelism} is below m=${DEFAULT_COST.memoryKiB},t=${DEFAULT_COST.passes},p=1`,
    );
  }
  if (memoryKiB > MOST.memoryKiB || passes > MOST.passes || parallelism > MOST.parallelism) {
    throw new Error(
      `costs too much to check: at most m=${MOST.memoryKiB},t=${MOST.passes},p=${MOST.parallelism}`,
    );
  }
  if (memoryKiB < 8 * parallelism) throw new Error('has less memory than eight times its parallelism');
}

function decode(part: string, text: string, bytes: { least: number; most: number }): Buffer {
  const decoded = Buffer.from(text, 'base64');
  if (encode(decoded) !== text) throw new Error(`has a ${part} that is not base64 without padding`);
  if (decoded.length < bytes.least || decoded.length > bytes.most) {
    throw new Error(`has a ${part} of ${decoded.length} bytes; right are ${bytes.least} to ${bytes.most}`);
  }
  return decoded;
}

function encode(bytes: Buffer): string {
  return bytes.toString('base64').replace(/=+$/, '');
}
