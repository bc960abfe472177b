import { existsSync, readFileSync, statfsSync } from 'node:fs';

const PATH = '/dev/shm';
const NEEDED_BYTES = 4 * 2 ** 30;

/**
 * A file system in memory with enough space for a whole run; null if the machine has none. ext4 takes up to ten times the
 * processor time to create files soon after others were deleted. No test depends on a disk: the machine does not fail,
 * and a killed process loses nothing that it wrote.
 */
export const MEMORY_DISK = hasSpace() && mayExecute() ? PATH : null;

function hasSpace(): boolean {
  if (!existsSync(PATH)) return false;
  const { bavail, bsize } = statfsSync(PATH);
  return bavail * bsize >= NEEDED_BYTES;
}

/** Whether programs that tests compile there can run: containers often forbid it. */
function mayExecute(): boolean {
  const mounts = readFileSync('/proc/self/mounts', 'utf8').split('\n');
  const options = mounts.map((line) => line.split(' ')).find(([, path]) => path === PATH)?.[3];
  return options !== undefined && !options.split(',').includes('noexec');
}
