import { existsSync, readFileSync, statfsSync } from 'node:fs';

const PATH = '/dev/shm';

/**
 * A file system in memory with enough space for a whole run; null if the machine has none. ext4 takes up to ten times the
 * processor time to create files soon after others were deleted. No test depends on a disk: the machine does not fail,
 * and a killed process loses nothing that it wrote.
 */
export const MEMORY_DISK = memoryDiskOf(4 * 2 ** 30);

/** A file system in memory with that much space; null if the machine has none. */
export function memoryDiskOf(bytes: number): string | null {
  return hasSpace(bytes) && isUnrestricted() ? PATH : null;
}

function hasSpace(bytes: number): boolean {
  if (!existsSync(PATH)) return false;
  const { bavail, bsize } = statfsSync(PATH);
  // The file system may be larger than the memory that is free, or than the limit of a container.
  return Math.min(bavail * bsize, process.availableMemory()) >= bytes;
}

/** Whether programs that tests compile there can run, and devices of a root can be opened: containers often forbid it. */
function isUnrestricted(): boolean {
  const mounts = readFileSync('/proc/self/mounts', 'utf8').split('\n');
  const options = mounts.map((line) => line.split(' ')).find(([, path]) => path === PATH)?.[3];
  return options !== undefined && !options.split(',').some((option) => ['noexec', 'nodev'].includes(option));
}
