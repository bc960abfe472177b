import type { IssuedToken, ListedToken } from '../model/records.ts';
import type { CommandContext } from './context.ts';
import { EXIT_CODES } from './output.ts';

interface TokenFlags {
  readonly rights?: Readonly<Record<string, readonly string[]>>;
  /** ISO 8601. */
  readonly expires?: string;
}

export async function addToken(context: CommandContext, name: string, flags: TokenFlags): Promise<number> {
  const { rights = null, expires = null } = flags;
  const body = JSON.stringify({ name, rights, expiresAt: expires });
  const created = await context.json<IssuedToken>('POST', '/tokens', { body });
  context.hasChanged = true;
  await context.print(created, () => `${created.token}\nIt is shown only once. Its id is ${created.id}.`);
  return EXIT_CODES.done;
}

export async function listTokens(context: CommandContext): Promise<number> {
  const tokens = await context.json<ListedToken[]>('GET', '/tokens');
  await context.printRecords(
    tokens,
    ({ id, name, owner, rights, expiresAt, lastUsedAt }) => ({
      id,
      name,
      owner,
      rights: rights === null ? 'all of the owner' : rightsText(rights),
      expires: expiresAt,
      'last used': lastUsedAt,
    }),
    'no tokens',
  );
  return EXIT_CODES.done;
}

export async function revokeToken(context: CommandContext, id: string): Promise<number> {
  await context.call('DELETE', `/tokens/${encodeURIComponent(id)}`, { isRepeatable: true });
  context.hasChanged = true;
  await context.print({ id, revoked: true }, () => `revoked ${id}`);
  return EXIT_CODES.done;
}

function rightsText(rights: NonNullable<ListedToken['rights']>): string {
  return Object.entries(rights)
    .map(([namespace, list]) => `${namespace}=${list.join(',')}`)
    .join(' ');
}
