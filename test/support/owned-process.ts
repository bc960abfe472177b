import { type SpawnOptions, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';

/** From Debian's util-linux, which is installed on every machine that runs all tests. */
const SETPRIV = '/usr/bin/setpriv';
const DIES_WITH_PARENT = existsSync(SETPRIV) ? [SETPRIV, '--pdeathsig', 'KILL', '--'] : [];

/**
 * Like `spawn`, but the kernel kills the process when this one ends in any way. A test file that exceeds the runner's
 * limit is ended by a signal and runs no teardown: the servers that it left kept the runner's pipes open, and the run
 * never ended.
 */
export const spawnOwned = ((program: string, args: readonly string[], options: SpawnOptions) => {
  const [first = program, ...rest] = [...DIES_WITH_PARENT, program, ...args];
  return spawn(first, rest, options);
}) as typeof spawn;
