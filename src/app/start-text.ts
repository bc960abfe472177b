import type { NewAdministrator } from '../access/users-file.ts';

export interface StartFacts {
  readonly version: string;
  readonly pid: number;
  /** Null if it could not be written. */
  readonly pidFile: string | null;
  readonly url: string;
  /** Whether `url` serves the console. */
  readonly hasConsole: boolean;
  /** Addresses of the front ends other than HTTP. */
  readonly otherUrls: readonly string[];
  /** Of the configuration, in its order. */
  readonly namespaces: readonly string[];
  readonly newAdministrator: NewAdministrator | null;
  /** Where the users come from: the users file, or null for the configuration. */
  readonly usersFile: string | null;
}

/** What a person reads when the server has started. Programs read the log. */
export function startText(facts: StartFacts): string {
  const { version, url, otherUrls, newAdministrator, usersFile } = facts;
  const first = `Quayside ${version} listens on ${[url, ...otherUrls].join(' and ')}\n${pidText(facts)}`;
  if (newAdministrator !== null) return `${first}\n${firstStart(facts, newAdministrator)}`;
  if (usersFile === null) return first;
  return `${first}The administrator's password was shown at the first start; \`npm start -- reset-admin\` makes a new one.\n`;
}

/** npm does not forward SIGHUP, so it goes to the server itself. */
function pidText({ pid, pidFile }: StartFacts): string {
  const kept = pidFile === null ? '' : ` (kept in ${pidFile})`;
  return `Its process is ${pid}${kept}; kill -HUP ${pid} reloads users and certificates.\n`;
}

function firstStart(facts: StartFacts, { definition, password }: NewAdministrator): string {
  // A socket is no address for a browser.
  const console =
    facts.hasConsole && !facts.url.startsWith('unix:') ? `  console   ${callable(facts.url)}/console/\n` : '';
  return `This is the first start. An administrator was made:

  address   ${facts.url}
${console}  user      ${definition.name}
  password  ${password}

The password is shown this once; its hash is in ${facts.usersFile}.
To try it, paste these lines into a shell:

${tryLines(facts, `${definition.name}:${password}`).join('\n')}

They insert an element, get it (waiting up to ten seconds), reserve another and commit it with its token. Q is the
address of the server, as in README.md.
`;
}

/** A filter from response headers to `ID?token=TOKEN`, the end of a commit's URL. */
const ID_AND_TOKEN = `awk 'tolower($1) == "x-ks-id:" { id = $2 } tolower($1) == "x-ks-lease:" { token = $2 } END { print id "?token=" token }'`;

/** Lines that work in any POSIX shell, one after the other. */
function tryLines({ url, namespaces }: StartFacts, credentials: string): string[] {
  const [, socket] = /^unix:(.*)$/.exec(url) ?? [];
  const address = socket === undefined ? callable(url) : 'http://localhost';
  const to = socket === undefined ? '' : ` --unix-socket '${socket.replaceAll("'", "'\\''")}'`;
  const namespace = encodeURIComponent(namespaces[0] ?? '').replaceAll('!', '%21');
  return [
    `export U='${credentials}' Q='${address}'`,
    `curl${to} -u "$U" -X PUT "$Q/q/${namespace}/first" -H 'content-type: application/json' -d '{"hello": "world"}'`,
    `curl${to} -u "$U" -i "$Q/q/${namespace}/first?to=10000"`,
    `curl${to} -u "$U" -X PUT "$Q/q/${namespace}/first" -H 'content-type: text/plain' -d 'another'`,
    `JOB=$(curl${to} -u "$U" -s -o /dev/null -D - "$Q/q/${namespace}/first?reserve=true&to=10000" | tr -d '\\r' | ${ID_AND_TOKEN})`,
    `curl${to} -u "$U" -X PATCH "$Q/q/${namespace}/first/commit/$JOB"`,
  ];
}

/** The addresses that stand for "all of this machine's" cannot be called everywhere. */
function callable(url: string): string {
  return url.replace('//0.0.0.0:', '//127.0.0.1:').replace('//[::]:', '//[::1]:');
}
