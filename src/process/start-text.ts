import type { NewAdministrator } from '../access/users-file.ts';

export interface StartFacts {
  readonly version: string;
  readonly pid: number;
  /** Null if it could not be written. */
  readonly pidFile: string | null;
  readonly url: string;
  /** Addresses of the front ends beside HTTP. */
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
  return `This is the first start. An administrator was made:

  address   ${facts.url}
  user      ${definition.name}
  password  ${password}

The password is shown this once; its hash is in ${facts.usersFile}.
To try it, paste these lines into a shell:

${tryLines(facts, `${definition.name}:${password}`).join('\n')}

They insert an element, get one (waiting up to ten seconds), reserve another and commit it.
`;
}

/** Lines that work in any POSIX shell, one after the other. */
function tryLines({ url, namespaces }: StartFacts, credentials: string): string[] {
  // The addresses that stand for "all of this machine's" cannot be called everywhere.
  const callable = url.replace('//0.0.0.0:', '//127.0.0.1:').replace('//[::]:', '//[::1]:');
  const namespace = encodeURIComponent(namespaces[0] ?? '').replaceAll("'", '%27');
  return [
    `export U='${credentials}' Q='${callable}/q/${namespace}/first'`,
    `curl -u "$U" -X PUT "$Q" -H 'content-type: application/json' -d '{"hello": "world"}'`,
    `curl -u "$U" -i "$Q?to=10000"`,
    `curl -u "$U" -X PUT "$Q" -d 'another'`,
    `ID=$(curl -u "$U" -s -o /dev/null -D - "$Q?reserve=true&to=10000" | tr -d '\\r' | awk 'tolower($1) == "x-ks-id:" { print $2 }')`,
    `curl -u "$U" -X PATCH "$Q/commit/$ID"`,
  ];
}
