import { type SpawnOptions, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';

/** Of Debian's util-linux, which is on every machine that runs all tests. */
const SETPRIV = '/usr/bin/setpriv';
const DIES_WITH_PARENT = existsSync(SETPRIV) ? [SETPRIV, '--pdeathsig', 'KILL', '--'] : [];

/**
 * As `spawn`, but the kernel kills the process when this one ends, in whatever way. A test file that ran into the
 * runner's limit is ended by a signal and runs no teardown: servers that it left held the runner's pipes, and the run
 * never ended.
 */
export const spawnOwned = ((program: string, args: readonly string[], options: SpawnOptions) => {
  const [first = program, ...rest] = [...DIES_WITH_PARENT, program, ...args];
  return spawn(first, rest, options);
}) as typeof spawn;
