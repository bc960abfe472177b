import type { Mutant } from './mutants.ts';

const edit = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/${file}`, search, replace },
];

/**
 * Bugs of the console: sessions that last too long or can be used by other pages, and pages that wait forever or lose
 * updates.
 */
export const CONSOLE: readonly Mutant[] = [
  {
    name: 'a GET that pops needs no CSRF token',
    suite: 'console sessions',
    edits: edit('http/routes/takes.ts', "    csrf: 'all',\n", ''),
  },
  {
    name: 'the cookie authenticates a request that was typed as an address',
    suite: 'console sessions',
    edits: edit('http/browser.ts', "fetchSite !== 'same-origin' && fetchSite !== null", 'false'),
  },
  {
    name: 'the CSRF token of any session is accepted',
    suite: 'console sessions',
    edits: edit('access/console-sessions.ts', 'csrfToken: sign(', "csrfToken: ['csrf'].at(0) ?? sign("),
  },
  {
    name: 'a sign-in does not end the previous session',
    suite: 'console sessions',
    edits: edit('http/routes/console.ts', 'call.session?.end().catch(() => {});', ''),
  },
  {
    name: 'changing a password does not end sessions',
    suite: 'console sessions',
    edits: edit('access/console-sessions.ts', ', passwordText(account.password)', ''),
  },
  {
    name: 'a session in use lasts forever',
    suite: 'console sessions',
    edits: edit(
      'access/console-sessions.ts',
      'Math.min(startedAt + MAX_SESSION_MS, usedAt + this.#options.idleMs)',
      'startedAt * 0 + usedAt + this.#options.idleMs',
    ),
  },
  {
    name: 'a console whose session has ended continues as the user of Basic credentials',
    suite: 'console sessions',
    edits: edit('http/browser.ts', ' || namesCsrfToken(call);', ';'),
  },
  {
    name: 'a stream of events outlives its session',
    suite: 'console sessions',
    edits: edit(
      'http/routes/events.ts',
      'session?.onEnd(() => this.onInputEnd())',
      'session?.onEnd(() => {})',
    ),
  },
  {
    name: 'a waiting get takes an element after its session has ended',
    suite: 'console sessions',
    edits: edit('http/routes/takes.ts', '() => this.#reject(this.#call.sessionLost())', '() => {}'),
  },
  {
    name: 'an import stores lines received after its session has ended',
    suite: 'console sessions',
    edits: edit('http/call.ts', 'if (this.session?.isOver() === true) throw this.sessionLost();', ''),
  },
  {
    name: 'a listing that waited is returned to a session that has ended',
    suite: 'console sessions',
    edits: edit('http/limits.ts', '      call.renewUser();\n      await list();', '      await list();'),
  },
  {
    name: 'an import continues beyond the maximum age of its session',
    suite: 'console sessions',
    edits: edit('access/console-sessions.ts', 'startedAt + MAX_SESSION_MS <= clock.now() ||', ''),
  },
  {
    name: 'a long call restores the cookie of a session that ended during it',
    suite: 'console sessions',
    edits: edit(
      'http/call.ts',
      '    this.newCookie = null;\n    return loginLost();',
      '    return loginLost();',
    ),
  },
  {
    name: 'another site can use the console session for requests, not only for links to its pages',
    suite: 'console pages',
    edits: edit('http/browser.ts', '?.route.isPage === true) return', "?.route.access === 'open') return"),
  },
  {
    name: 'a name with spaces becomes several words of a filter',
    suite: 'queues of all namespaces',
    edits: edit('http/routes/find-queues.ts', '(?:[a-z]+:)?"(?:[^"\\\\]|\\\\.)*"(?=\\s|$)|', ''),
  },
  {
    name: 'a sum includes deleted queues',
    suite: 'queues of all namespaces',
    edits: edit('broker/activity.ts', 'this.#sum.change(this.#clock.monotonic(), series.last, null);', ''),
  },
  {
    name: 'an operation can be started again immediately after a proxy responded with an error',
    suite: 'console in a browser',
    edits: edit('console/api.ts', 'return status === 0 || status >= 500;', 'return status === 0;'),
  },
  {
    name: 'a page waits forever for a response that never arrives',
    suite: 'console in a browser',
    edits: edit('console/api.ts', '  listen();\n  try {', '  try {'),
  },
  {
    name: 'a page waits forever for the rest of a response',
    suite: 'console in a browser',
    edits: [
      ...edit('console/api.ts', 'return await use(', 'cancel();\n    return await use('),
      ...edit('console/api.ts', '      onPiece();\n', ''),
    ],
  },
  {
    name: 'a truncated response is not requested again',
    suite: 'console in a browser',
    edits: edit(
      'console/api.ts',
      'throw signal.aborted ? signal.reason : unreachable();',
      "throw new TypeError('network error');",
    ),
  },
  {
    name: 'a silent connection is not closed if it replaced a lost one',
    suite: 'console in a browser',
    edits: edit(
      'console/remote/live.ts',
      'if (!isStreamWanted.value) return undefined;\n    return every(1_000',
      "if (!isStreamWanted.value || connection.value === 'lost') return undefined;\n    return every(1_000",
    ),
  },
  {
    name: 'the dialog of an operation is closed while it starts',
    suite: 'console in a browser',
    edits: edit('console/ui/operation-dialog.tsx', 'if (isStarting.peek()) return;', ''),
  },
  {
    name: 'a second Escape closes a dialog',
    suite: 'console in a browser',
    edits: edit('console/ui/dialog.tsx', 'onClose={() => ref.current?.showModal()}', ''),
  },
  {
    name: 'a count continues although its dialog was closed before the server responded',
    suite: 'console in a browser',
    edits: edit('console/ui/operation-dialog.tsx', 'if (signal.aborted) return cancel();', ''),
  },
];
