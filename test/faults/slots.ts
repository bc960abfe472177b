import { slotOf } from '../../src/engines/redis/client/topology.ts';
import { redisCli } from '../support/redis-servers.ts';

/** The port of the master of a slot, according to the server at `port`. */
export function ownerOf(slot: number, port: number): number {
  const line = nodesAt(port).find((fields) => fields.slice(8).some((range) => isIn(range, slot)));
  if (line === undefined) throw new Error(`No master has slot ${slot}.`);
  return portOf(line);
}

/** The ports of all masters that are not marked as failed. */
export function mastersAt(port: number): number[] {
  return nodesAt(port)
    .filter(([, , flags = '']) => flags.includes('master') && !flags.includes('fail'))
    .map(portOf);
}

/** Moves a slot with its keys to another master while calls continue, as an operator does. */
export function moveSlot(slot: number, from: number, to: number): void {
  const [fromId, toId] = [cli(from, 'CLUSTER', 'MYID'), cli(to, 'CLUSTER', 'MYID')];
  cli(to, 'CLUSTER', 'SETSLOT', String(slot), 'IMPORTING', fromId);
  cli(from, 'CLUSTER', 'SETSLOT', String(slot), 'MIGRATING', toId);
  for (;;) {
    const keys = cli(from, 'CLUSTER', 'GETKEYSINSLOT', String(slot), '100').split('\n').filter(Boolean);
    if (keys.length === 0) break;
    for (const key of keys) cli(from, 'MIGRATE', '127.0.0.1', String(to), key, '0', '5000');
  }
  for (const port of [to, from]) cli(port, 'CLUSTER', 'SETSLOT', String(slot), 'NODE', toId);
}

/** Slots of which a master has keys. */
export function usedSlots(port: number): number[] {
  const keys = cli(port, 'KEYS', '*').split('\n').filter(Boolean);
  return [...new Set(keys.map(slotOf))];
}

function cli(port: number, ...command: readonly string[]): string {
  return redisCli(port, ...command).trim();
}

function nodesAt(port: number): string[][] {
  return cli(port, 'CLUSTER', 'NODES')
    .split('\n')
    .map((line) => line.split(' '));
}

function portOf([, address = '']: readonly string[]): number {
  return Number(/:(\d+)@/.exec(address)?.[1]);
}

function isIn(range: string, slot: number): boolean {
  const [first = '', last = first] = range.split('-');
  return Number(first) <= slot && slot <= Number(last);
}
