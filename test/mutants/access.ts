import type { Mutant } from './mutants.ts';

const edit = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/access/${file}`, search, replace },
];

/**
 * Bugs of logins and tokens: each lets strangers in, lets them lock users out, or gives a token more rights than
 * intended.
 */
export const ACCESS: readonly Mutant[] = [
  {
    name: 'failed logins of a name in one network lock other names of that network out',
    suite: 'logins',
    edits: edit(
      'login-limits.ts',
      'return JSON.stringify([name, network]);',
      'return JSON.stringify([network]);',
    ),
  },
  {
    name: 'failed logins of a name in other networks lock its user out',
    suite: 'logins',
    edits: edit(
      'login-limits.ts',
      'return JSON.stringify([name, network]);',
      'return JSON.stringify([name]);',
    ),
  },
  {
    name: 'logins from new networks and of recent users wait in one queue',
    suite: 'logins',
    edits: edit('password-authenticator.ts', "origin?.isKnown === false ? 'new' : 'known'", "'all'"),
  },
  {
    name: 'names that fail in a network are not counted',
    suite: 'logins',
    edits: edit('login-limits.ts', 'this.#networks.add(origin.network, origin.name);', ''),
  },
  {
    name: 'a user with a recent login from a network is locked out by failures of others there',
    suite: 'logins',
    edits: edit('login-limits.ts', '    if (isKnown) return;\n    rejectAbove', '    rejectAbove'),
  },
  {
    name: 'logins that wait for a slow-down are not counted, so that all start at the same time',
    suite: 'logins',
    edits: edit('login-limits.ts', '    limit.spend(key);\n    if (waitMs', '    if (waitMs'),
  },
  {
    name: 'a correct password is counted as a failure',
    suite: 'logins',
    edits: edit(
      'password-authenticator.ts',
      'if (from.origin !== null) this.#limits.refund(from.origin);',
      '',
    ),
  },
  {
    name: 'wrong credentials are hashed again each time',
    suite: 'logins',
    edits: edit(
      'password-authenticator.ts',
      'if (accounts === this.#accounts) this.#rememberWrong(key);',
      '',
    ),
  },
  {
    name: 'a rejected password stays rejected after the users have changed',
    suite: 'logins',
    edits: edit('password-authenticator.ts', '    this.#wrong.clear();\n', ''),
  },
  {
    name: 'each spelling of a header is cached separately',
    suite: 'logins',
    edits: edit(
      'password-authenticator.ts',
      'return BASIC.exec(authorization)?.[1] ?? null;',
      'return authorization;',
    ),
  },
  {
    name: 'credentials in use are evicted before unused ones',
    suite: 'logins',
    edits: [
      {
        file: 'src/util/put-last.ts',
        search: '  map.delete(key);\n  map.set(key, value);',
        replace: '  map.set(key, value);',
      },
    ],
  },
  {
    name: 'a client can choose its address with the first entry of X-Forwarded-For',
    suite: 'client addresses',
    edits: [{ file: 'src/http/forwarded.ts', search: 'of nodes.toReversed()', replace: 'of nodes' }],
  },
  {
    name: 'the forwarded address of a peer that is not a trusted proxy is used',
    suite: 'client addresses',
    edits: [
      {
        file: 'src/http/forwarded.ts',
        search: ' || !trusted.has(peer)) return peer;',
        replace: ') return peer;',
      },
    ],
  },
  {
    name: 'a token has rights that were not given to it',
    suite: 'API tokens',
    edits: edit('api-tokens.ts', ' && (this.#restriction === null || check(this.#restriction));', ';'),
  },
  {
    name: 'a token has rights that its owner does not have',
    suite: 'API tokens',
    edits: edit('api-tokens.ts', 'owner !== null && check(owner) && (', 'owner !== null && ('),
  },
  {
    name: 'a token is the password of any user',
    suite: 'API tokens',
    edits: edit(
      'api-tokens.ts',
      '    if (name !== null && name !== ANY_OWNER && name !== token.stored.owner) return null;\n',
      '',
    ),
  },
  {
    name: 'a token with fewer rights creates one with more',
    suite: 'API tokens',
    edits: [
      {
        file: 'src/http/routes/tokens.ts',
        search: '  if (token === undefined) return;\n',
        replace: '  return;\n',
      },
    ],
  },
  {
    name: 'a console session can start with a token, and outlives it',
    suite: 'API tokens',
    edits: edit(
      'console-sessions.ts',
      'if (account?.user !== user) return null;',
      'if (account === null) return null;',
    ),
  },
  {
    name: "a node's timer is set for the last created token, not for the next to expire",
    suite: 'API tokens that expire',
    edits: edit(
      'api-tokens.ts',
      '    this.#expiry.within(',
      '    this.#expiry.cancel();\n    this.#expiry.within(',
    ),
  },
  {
    name: 'a user may revoke the tokens of others',
    suite: 'API tokens',
    edits: edit('api-tokens.ts', 'token === undefined || !isVisible(token, caller)', 'token === undefined'),
  },
  {
    name: 'a token outlives its owner',
    suite: 'API tokens in the server',
    edits: edit('api-tokens.ts', 'token === undefined || !token.hasOwner', 'token === undefined'),
  },
  {
    name: 'sessions of a revoked token continue',
    suite: 'API tokens in the server',
    edits: edit('password-authenticator.ts', 'return token.owner === null ? null : user;', 'return user;'),
  },
  {
    name: 'sessions are not checked when a token expires',
    suite: 'API tokens that expire',
    edits: edit('api-tokens.ts', 'if (users.size > 0) this.#onEnded(users);', ''),
  },
  {
    name: 'of several tokens that expire, only the first ends its sessions',
    suite: 'API tokens that expire',
    edits: edit('api-tokens.ts', 'if (!isExpired) this.#watchExpiry(token);', 'if (!isExpired) continue;'),
  },
  {
    name: 'each token that expires ends the sessions of all tokens that expired before',
    suite: 'API tokens that expire',
    edits: edit('api-tokens.ts', 'else if (!wasExpired && token', 'else if (token'),
  },
  {
    name: 'the expiry of an unused token checks all sessions and long calls',
    suite: 'API tokens that expire',
    edits: edit('api-tokens.ts', '    if (token.lastUsedAt === null) return;\n', ''),
  },
  {
    name: 'the expiry of a token checks the sessions and calls of all users',
    suite: 'API tokens in the server',
    edits: [
      {
        file: 'src/app/server.ts',
        search: 'tokens.onEnded((users) => this.#renewUsers(running, users));',
        replace: 'tokens.onEnded(() => this.#renewUsers(running, null));',
      },
    ],
  },
  {
    name: 'ended sessions are valid again when there are more than are stored individually',
    suite: 'ended sessions',
    edits: edit(
      'ended-sessions.ts',
      '      ends.delete(key);\n      putLater(ends, EVERY_SESSION, before);',
      '      ends.delete(key);',
    ),
  },
  {
    name: 'the end of a session is not stored later if storing it failed',
    suite: 'ended sessions',
    edits: edit(
      'ended-sessions.ts',
      'this.#retries.do(JSON.stringify([at, user]), store, String(at))',
      'store().then(() => null, (error: unknown) => error)',
    ),
  },
  {
    name: 'ending all sessions misses those of a node whose clock is ahead',
    suite: 'ended sessions',
    edits: edit('ended-sessions.ts', 'CLOCK_SKEW_MS = 60_000', 'CLOCK_SKEW_MS = 1'),
  },
  {
    name: 'replacing a password ends sessions of the new one',
    suite: 'ended sessions',
    edits: edit(
      'ended-sessions.ts',
      'startedAt < latestEnd(ends, password)',
      'startedAt < Math.max(0, ...ends.values())',
    ),
  },
  {
    name: 'ended sessions are stored forever',
    suite: 'ended sessions',
    edits: edit('ended-sessions.ts', 'if (before <= since) ends.delete(key);', ''),
  },
  {
    name: 'concurrent writes of two nodes fail',
    suite: 'ended sessions',
    edits: [
      {
        file: 'src/engine/definitions.ts',
        search: '!isDefinitionConflict(error) || conflicts === MAX_CONFLICTS',
        replace: 'error instanceof Error',
      },
    ],
  },
  {
    name: 'a user cannot sign in for a while after all their sessions were ended',
    suite: 'console sessions',
    edits: edit(
      'console-sessions.ts',
      'this.#options.ended.startOf(user.name, passwordIdOf(this.#keyOf(account)))',
      'this.#options.clock.now()',
    ),
  },
  {
    name: 'users list and end the sessions of others',
    suite: 'console sessions',
    edits: [
      {
        file: 'src/http/routes/console.ts',
        search: 'if (user.isAdministrator) return query.user;',
        replace: 'return query.user;',
      },
    ],
  },
  {
    name: 'event streams continue after all sessions were ended',
    suite: 'console sessions',
    edits: edit('console-sessions.ts', 'if (user === name && isOver()) end();', ';'),
  },
  {
    name: 'a sign-out is effective on one node only',
    suite: 'access on several nodes',
    edits: edit('console-sessions.ts', '{ id, startedAt }, isLocal)', '{ id, startedAt }, true)'),
  },
  {
    name: 'nodes that have not reloaded the users accept sessions with the old password',
    suite: 'access on several nodes',
    edits: edit('console-sessions.ts', '{ password }, secret === null)', '{ password }, true)'),
  },
  {
    name: 'tokens of a removed user are valid again for a new user with that name',
    suite: 'API tokens in the server',
    edits: [
      {
        file: 'src/app/server.ts',
        search: '      tokens.revokeOf(removed.map(nameOf)),\n',
        replace: '',
      },
    ],
  },
  {
    name: 'a user command overwrites changes that were made while the password was typed',
    suite: 'user commands',
    edits: [
      {
        file: 'src/app/user-commands.ts',
        search: `      const loaded = await load();
      const store = await findStore(loaded, configFile);
      userToChange(store, change);
`,
        replace: `      const loaded = before;
      const store = found;
`,
      },
    ],
  },
  {
    name: 'concurrent user commands do not wait for each other',
    suite: 'user commands',
    edits: [
      {
        file: 'src/util/files.ts',
        search: 'for (let leftMs = waitMs; !createPrivateFile(lock); leftMs -= LOCK_RETRY_MS) {',
        replace: 'for (let leftMs = waitMs; waitMs === 0; leftMs -= LOCK_RETRY_MS) {',
      },
    ],
  },
  {
    name: 'a queue retains the request that created it',
    suite: 'names of queues',
    edits: [
      {
        file: 'src/broker/namespace.ts',
        search: 'const ownName = ownString(name);',
        replace: 'const ownName = name;',
      },
    ],
  },
];
