import type { Mutant } from './mutants.ts';

const edit = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/${file}`, search, replace },
];

/** Sessions of the console that last too long, or that other pages can use; and pages that lose what they wait for. */
export const CONSOLE: readonly Mutant[] = [
  {
    name: 'a GET that pops needs no CSRF token',
    suite: 'console sessions',
    edits: edit('http/routes/takes.ts', "    csrf: 'all',\n", ''),
  },
  {
    name: 'the cookie means its user on an address that was typed',
    suite: 'console sessions',
    edits: edit('http/browser.ts', "fetchSite !== 'same-origin' && fetchSite !== null", 'false'),
  },
  {
    name: 'the CSRF token of any session is right',
    suite: 'console sessions',
    edits: edit('access/console-sessions.ts', 'csrfToken: sign(', "csrfToken: ['csrf'].at(0) ?? sign("),
  },
  {
    name: 'a sign-in leaves the session of before as it is',
    suite: 'console sessions',
    edits: edit(
      'http/routes/console.ts',
      'if (previousToken !== null) sessions.end(previousToken).catch(() => {});',
      '',
    ),
  },
  {
    name: 'another password does not end sessions',
    suite: 'console sessions',
    edits: edit('access/console-sessions.ts', ', passwordText(account.password)', ''),
  },
  {
    name: 'a session that is used lasts for ever',
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
      'onSessionEnd(this.#call, onEnd)',
      'onSessionEnd(this.#call, () => {})',
    ),
  },
  {
    name: 'a get that waits takes an element after its session has ended',
    suite: 'console sessions',
    edits: edit('http/routes/takes.ts', '() => this.#reject(this.#call.sessionLost())', '() => {}'),
  },
  {
    name: 'an import stores what comes after the end of its session',
    suite: 'console sessions',
    edits: edit('http/call.ts', 'if (this.session?.isOver() === true) throw this.sessionLost();', ''),
  },
  {
    name: 'a listing that waited is of a session that has ended',
    suite: 'console sessions',
    edits: edit('http/front.ts', '      call.renewUser();\n      await list();', '      await list();'),
  },
  {
    name: 'an import goes on after the longest time of its session',
    suite: 'console sessions',
    edits: edit(
      'access/console-sessions.ts',
      'startedAt + MAX_SESSION_MS <= this.#options.clock.now() ||',
      '',
    ),
  },
  {
    name: 'the end of a session in a call that lasts brings its cookie back',
    suite: 'console sessions',
    edits: edit(
      'http/call.ts',
      '    this.newCookie = null;\n    return loginLost();',
      '    return loginLost();',
    ),
  },
  {
    name: 'another site may call the session of the console as it may link to its pages',
    suite: 'console pages',
    edits: edit('http/browser.ts', '?.route.isPage === true) return', "?.route.access === 'open') return"),
  },
  {
    name: 'a name with spaces is several words of a filter',
    suite: 'queues of all namespaces',
    edits: edit('http/routes/find-queues.ts', '(?:[a-z]+:)?"(?:[^"\\\\]|\\\\.)*"(?=\\s|$)|', ''),
  },
  {
    name: 'a sum counts queues that are gone',
    suite: 'queues of all namespaces',
    edits: edit('broker/activity.ts', 'this.#sum.change(this.#clock.monotonic(), series.last, null);', ''),
  },
  {
    name: 'an operation whose start a proxy answered with an error is confirmed again at once',
    suite: 'console in a browser',
    edits: edit('console/api.ts', 'return status === 0 || status >= 500;', 'return status === 0;'),
  },
  {
    name: 'a page waits for ever for a response that never comes',
    suite: 'console in a browser',
    edits: edit('console/api.ts', '  listen();\n  try {', '  try {'),
  },
  {
    name: 'a page waits for ever for the rest of a response',
    suite: 'console in a browser',
    edits: [
      ...edit('console/api.ts', 'return await use(', 'cancel();\n    return await use('),
      ...edit('console/api.ts', '      onPiece();\n', ''),
    ],
  },
  {
    name: 'a response that breaks off is no reason to read again',
    suite: 'console in a browser',
    edits: edit(
      'console/api.ts',
      'throw signal.aborted ? signal.reason : unreachable();',
      "throw new TypeError('network error');",
    ),
  },
  {
    name: 'a connection that is silent after one was lost is not ended',
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
    name: 'Escape closes a dialog the second time',
    suite: 'console in a browser',
    edits: edit('console/ui/dialog.tsx', 'onClose={() => ref.current?.showModal()}', ''),
  },
  {
    name: 'a count goes on whose dialog was closed before the server responded',
    suite: 'console in a browser',
    edits: edit('console/remote/operations.ts', 'if (signal.aborted) return cancel();', ''),
  },
];
