import { randomBytes } from 'node:crypto';

/** 128 random bits. */
export const TOKEN_BYTES = 16;

/** Tokens generated at once, since each call of `randomBytes` has a fixed cost. */
const POOL_TOKENS = 512;

/** Generates unguessable lease tokens. */
export class LeaseTokens {
  #pool = Buffer.alloc(0);
  #offset = 0;

  /** The bytes of a new token: a view of memory that is never reused. */
  bytes(): Buffer {
    const at = this.#takeOffset();
    return this.#pool.subarray(at, at + TOKEN_BYTES);
  }

  /** A new token in the form that clients receive, base64url. */
  text(): string {
    const at = this.#takeOffset();
    return this.#pool.toString('base64url', at, at + TOKEN_BYTES);
  }

  #takeOffset(): number {
    if (this.#offset === this.#pool.length) {
      this.#pool = randomBytes(TOKEN_BYTES * POOL_TOKENS);
      this.#offset = 0;
    }
    const at = this.#offset;
    this.#offset += TOKEN_BYTES;
    return at;
  }
}
