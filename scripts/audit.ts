/**
 * `npm run audit`: asks the registry for security advisories about the packages that the service needs at run time.
 * Exit code 1 if there are any. If the registry does not support the request (405) or there is no network, it reports
 * that nothing is known and exits with 0.
 */
import { spawnSync } from 'node:child_process';

interface Report {
  readonly vulnerabilities?: Readonly<Record<string, { readonly severity: string }>>;
  readonly message?: string;
  readonly error?: { readonly summary?: string };
}

const { stdout, stderr } = spawnSync('npm', ['audit', '--json', '--omit=dev', '--fetch-retries=0'], {
  encoding: 'utf8',
});
const report = parsed(stdout);
const found = Object.entries(report?.vulnerabilities ?? {});
if (report?.vulnerabilities === undefined) {
  const why = report?.message ?? report?.error?.summary ?? stderr.trim().split('\n').at(-1) ?? '';
  console.log(`audit: no result, the registry did not respond: ${why}`);
} else if (found.length === 0) {
  console.log('audit: no advisories');
} else {
  for (const [name, { severity }] of found) console.log(`audit: ${name}: ${severity}`);
  process.exitCode = 1;
}

function parsed(text: string): Report | null {
  try {
    return JSON.parse(text) as Report;
  } catch {
    return null;
  }
}
