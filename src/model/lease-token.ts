import { randomBytes } from 'node:crypto';

/** 128 random bits. */
export const TOKEN_BYTES = 16;

/** Drawn in one go, since each draw has a fixed cost. */
const POOL_TOKENS = 512;

/** Draws lease tokens, which cannot be guessed. */
export class LeaseTokens {
  #pool = Buffer.alloc(0);
  #at = 0;

  /** The bytes of a new token: a view of memory that is not written again. */
  bytes(): Buffer {
    const at = this.#advance();
    return this.#pool.subarray(at, at + TOKEN_BYTES);
  }

  /** A new token as clients see it. */
  text(): string {
    const at = this.#advance();
    return this.#pool.toString('base64url', at, at + TOKEN_BYTES);
  }

  #advance(): number {
    if (this.#at === this.#pool.length) {
      this.#pool = randomBytes(TOKEN_BYTES * POOL_TOKENS);
      this.#at = 0;
    }
    const at = this.#at;
    this.#at += TOKEN_BYTES;
    return at;
  }
}
