import type { Clock } from '../../../model/clock.ts';
import type { Address, Login } from '../settings.ts';
import { Connection } from './connection.ts';
import { text } from './greeting.ts';

const ASK_MS = 1_000;

/**
 * Asks Sentinels, one after the other, where the master is.
 * @throws Error where none of them knows
 */
export async function findMaster(
  { master, login }: { master: string; login: Login },
  sentinels: readonly Address[],
  clock: Clock,
): Promise<Address> {
  let problem = 'no Sentinel is named';
  for (const sentinel of sentinels) {
    try {
      const found = await askOne(sentinel, master, login, clock);
      if (found !== null) return found;
      problem = `Sentinel ${sentinel.host}:${sentinel.port} knows no master "${master}"`;
    } catch (error) {
      problem = `Sentinel ${sentinel.host}:${sentinel.port}: ${(error as Error).message}`;
    }
  }
  throw new Error(problem);
}

async function askOne(
  sentinel: Address,
  master: string,
  login: Login,
  clock: Clock,
): Promise<Address | null> {
  const connection = await Connection.open(sentinel, login, clock, ASK_MS);
  try {
    const reply = await connection.send('SENTINEL', ['get-master-addr-by-name', master]);
    if (!Array.isArray(reply)) return null;
    return { host: text(reply[0]), port: Number(text(reply[1])) };
  } finally {
    connection.close();
  }
}
