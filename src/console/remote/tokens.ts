import type { IssuedToken, ListedToken } from '../../model/records.ts';
import { call, get, path } from '../api.ts';

/** The server's maximum. A user has at most 100; administrators see those of all users. */
export const MAX_TOKENS = 1_000;

/** Reads the API tokens of the user, for administrators those of all users, the oldest first. */
export function listTokens(signal: AbortSignal): Promise<readonly ListedToken[]> {
  return get<readonly ListedToken[]>('tokens', { query: { limit: MAX_TOKENS }, signal });
}

/** @param token with `expiresAt` in ISO 8601; null: it never expires */
export function createToken(
  token: Pick<ListedToken, 'name' | 'expiresAt'> & { readonly rights: unknown },
): Promise<IssuedToken> {
  return get<IssuedToken>('tokens', { method: 'POST', json: token });
}

export async function revokeToken(id: string): Promise<void> {
  await call(path('tokens', id), { method: 'DELETE' });
}
