import { clockFinding, type EngineOptions, type Finding } from '../../engine/engine.ts';
import type { ServerFacts } from './client/server-check.ts';
import { Topology } from './client/topology.ts';
import type { Settings } from './settings.ts';

/**
 * Reads what the promises of the engine need of each master. Loads no functions into them.
 * @throws Error as a start does, if they cannot be used
 */
export async function examineMasters(
  settings: Settings,
  { clock }: Pick<EngineOptions, 'clock'>,
): Promise<readonly Finding[]> {
  const findings = new Map<string, readonly Finding[]>();
  const topology = new Topology({
    clock,
    library: null,
    settings,
    onReady: (facts, server) => findings.set(server, findingsOf(facts, server, settings, clock.now())),
    onDown: () => {},
  });
  try {
    await topology.start();
  } finally {
    topology.stop();
  }
  return [...findings.values()].flat();
}

function findingsOf(facts: ServerFacts, check: string, settings: Settings, here: number): readonly Finding[] {
  const { version, now } = facts;
  const ok = (message: string): Finding => ({ level: 'ok', check, message, hint: null });
  return [
    ok(`it is version ${version}`),
    // Another one is a reason not to use the server.
    ok('its maxmemory-policy is noeviction'),
    appendOnlyFinding(facts, check),
    replicasFinding(facts, check, settings),
    clockFinding(check, now, here),
  ];
}

function appendOnlyFinding({ appendOnly, appendFsync }: ServerFacts, check: string): Finding {
  if (!appendOnly) {
    return {
      level: 'warning',
      check,
      message: 'it keeps no append-only file: a restart loses acknowledged changes',
      hint: 'set appendonly yes',
    };
  }
  if (appendFsync === 'no') {
    return {
      level: 'warning',
      check,
      message: 'its appendfsync is no: a crash of its machine loses many seconds of acknowledged changes',
      hint: 'set appendfsync everysec, or always',
    };
  }
  const fsync = appendFsync === null ? 'which CONFIG GET does not show' : appendFsync;
  return {
    level: 'ok',
    check,
    message: `it keeps an append-only file; its appendfsync is ${fsync}`,
    hint: null,
  };
}

/** The checks of a start let a server pass that acknowledges nothing for lack of replicas: they may still connect. */
function replicasFinding({ replicas }: ServerFacts, check: string, { wait }: Settings): Finding {
  if (wait !== null && wait > replicas) {
    return {
      level: 'error',
      check,
      message: `its connected replicas: ${replicas}; wait is ${wait}, so no change is acknowledged`,
      hint: 'connect the replicas, or lower wait',
    };
  }
  const awaited = wait ?? Math.min(1, replicas);
  return {
    level: 'ok',
    check,
    message: `its connected replicas: ${replicas}; a change is acknowledged when that many have it: ${awaited}`,
    hint: null,
  };
}
