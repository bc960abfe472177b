import type { Mutant } from './mutants.ts';

const edit = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/access/${file}`, search, replace },
];

/** Bugs of logins: each lets strangers guess, or lets them lock users out. */
export const ACCESS: readonly Mutant[] = [
  {
    name: 'failures of a name in one network keep other names there out',
    suite: 'logins',
    edits: edit(
      'login-limits.ts',
      'return JSON.stringify([name, network]);',
      'return JSON.stringify([network]);',
    ),
  },
  {
    name: 'failures of a name elsewhere keep its user out',
    suite: 'logins',
    edits: edit(
      'login-limits.ts',
      'return JSON.stringify([name, network]);',
      'return JSON.stringify([name]);',
    ),
  },
  {
    name: 'names that fail in a network are not counted',
    suite: 'logins',
    edits: edit('login-limits.ts', 'this.#networks.add(origin.network, origin.name);', ''),
  },
  {
    name: 'a name that logged in from a network is kept out by strangers there',
    suite: 'logins',
    edits: edit('login-limits.ts', '    if (isKnown) return;\n    rejectAbove', '    rejectAbove'),
  },
  {
    name: 'a slow-down is not counted, so that all who wait begin at once',
    suite: 'logins',
    edits: edit('login-limits.ts', '    limit.spend(key);\n    if (waitMs', '    if (waitMs'),
  },
  {
    name: 'a right password is counted as a failure',
    suite: 'logins',
    edits: edit(
      'password-authenticator.ts',
      'if (from.origin !== null) this.#limits.refund(from.origin);',
      '',
    ),
  },
  {
    name: 'credentials that were wrong are hashed again each time',
    suite: 'logins',
    edits: edit(
      'password-authenticator.ts',
      'if (accounts === this.#accounts) this.#rememberWrong(key);',
      '',
    ),
  },
  {
    name: 'a password that was wrong stays wrong when the users change',
    suite: 'logins',
    edits: edit('password-authenticator.ts', '    this.#wrong.clear();\n', ''),
  },
  {
    name: 'each spelling of a header is remembered on its own',
    suite: 'logins',
    edits: edit('basic.ts', 'return BASIC.exec(authorization)?.[1] ?? null;', 'return authorization;'),
  },
  {
    name: 'credentials in use are forgotten before those that are not',
    suite: 'logins',
    edits: edit(
      'password-authenticator.ts',
      '  map.delete(key);\n  map.set(key, value);',
      '  map.set(key, value);',
    ),
  },
  {
    name: 'a client chooses its address by the first entry of X-Forwarded-For',
    suite: 'client addresses',
    edits: [{ file: 'src/http/client-address.ts', search: 'of nodes.toReversed()', replace: 'of nodes' }],
  },
  {
    name: 'a peer that is no proxy is believed',
    suite: 'client addresses',
    edits: [
      {
        file: 'src/http/client-address.ts',
        search: ' || !trusted.has(peer)) return peer;',
        replace: ') return peer;',
      },
    ],
  },
];
