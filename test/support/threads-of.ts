import { readdirSync, readFileSync } from 'node:fs';

/** The names of a process's threads, as Linux shows them. */
export function threadsOf(pid: number): string[] {
  const tasks = `/proc/${pid}/task`;
  return readdirSync(tasks).map((task) => readFileSync(`${tasks}/${task}/comm`, 'utf8').trim());
}
