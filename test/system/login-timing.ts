/**
 * Measures whether the duration of a rejected login reveals if the user exists: against the real server over HTTP, with
 * wrong passwords of existing users and names of unknown users. Each login comes from another network, as a proxy
 * reports it, so that no rate limit applies. `npm run test:login-timing`; `LOGIN_SAMPLES` sets the total number of
 * logins.
 */
import { randomInt } from 'node:crypto';
import { hashPassword } from '../../src/access/password.ts';
import { QueueClient } from '../support/http-client.ts';
import { ServerProcess } from '../support/server-process.ts';

const SAMPLES = Number(process.env.LOGIN_SAMPLES ?? 2_000);
const WARM_UP = 100;
/** Enough that no user reaches the rate limit per name. */
const USERS = 200;
/** The largest accepted relative difference of the means. */
const MAX_DIFFERENCE = 0.05;

const CASES = ['wrong password', 'unknown user'] as const;
type Case = (typeof CASES)[number];

const password = await hashPassword('a password that is not guessed');
const users = Object.fromEntries(Array.from({ length: USERS }, (_, i) => [nameOf('user', i), { password }]));
const server = await ServerProcess.start({
  config: {
    http: { users, trustedProxies: ['127.0.0.1'] },
    namespaces: { N: { url: 'sqlite::memory:' } },
    log: { level: 'error' },
  },
});
const times: Record<Case, number[]> = { 'wrong password': [], 'unknown user': [] };
let first = 0;
try {
  for (let i = -WARM_UP; i < SAMPLES; i++) {
    // Both cases alternate in random order, so that slow moments of the machine affect both alike.
    if (i % 2 === 0) first = randomInt(2);
    const which = CASES[(first + Math.abs(i % 2)) % 2] ?? 'unknown user';
    const ms = await rejectedIn(which, i + WARM_UP);
    if (i >= 0) times[which].push(ms);
  }
} finally {
  await server.dispose();
}
process.exitCode = report() ? 0 : 1;

async function rejectedIn(which: Case, i: number): Promise<number> {
  const name = nameOf(which === 'wrong password' ? 'user' : 'none', i % USERS);
  const client = new QueueClient({ url: server.url, credentials: `${name}:guess number ${i}` });
  const headers = { 'x-forwarded-for': `${11 + (i >> 16)}.${(i >> 8) & 255}.${i & 255}.1` };
  const startedAt = performance.now();
  const { status } = await client.namespaces({ headers });
  const ms = performance.now() - startedAt;
  client.close();
  if (status !== 401) throw new Error(`A login was answered with ${status}, not 401: a limit cut in.`);
  return ms;
}

/** Names of equal length, because longer ones take longer to parse. */
function nameOf(kind: 'user' | 'none', i: number): string {
  return `${kind}${String(i).padStart(4, '0')}`;
}

function report(): boolean {
  const [wrong, unknown] = CASES.map((which) => describe(which, times[which])) as [number, number];
  const difference = Math.abs(wrong - unknown) / Math.min(wrong, unknown);
  const isSame = difference <= MAX_DIFFERENCE;
  const percent = (part: number): string => `${(part * 100).toFixed(2)} %`;
  console.log(
    `means differ by ${percent(difference)}; at most ${percent(MAX_DIFFERENCE)}: ${isSame ? 'ok' : 'TOO MUCH'}`,
  );
  return isSame;
}

function describe(which: Case, samples: readonly number[]): number {
  const sorted = samples.toSorted((a, b) => a - b);
  const mean = samples.reduce((sum, ms) => sum + ms, 0) / samples.length;
  const at = (part: number): string => (sorted[Math.floor(part * sorted.length)] ?? 0).toFixed(3);
  console.log(
    `${which}: ${samples.length} samples, mean ${mean.toFixed(3)} ms, median ${at(0.5)}, p5 ${at(0.05)}, p95 ${at(0.95)}`,
  );
  return mean;
}
