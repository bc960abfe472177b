import { readdirSync, readFileSync } from 'node:fs';

/** Returns the names of a process's threads, from Linux. */
export function threadsOf(pid: number): string[] {
  const tasks = `/proc/${pid}/task`;
  return readdirSync(tasks).map((task) => readFileSync(`${tasks}/${task}/comm`, 'utf8').trim());
}
