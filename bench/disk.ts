import { closeSync, fdatasyncSync, openSync, rmSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { percentile } from './scenario.ts';

const SYNCS = 50;
const PAGE = Buffer.alloc(4096, 1);

/**
 * How long a sync of 4 KiB to disk takes at the moment, as text. Figures with durable writes depend on it, and on a
 * shared machine it can change tenfold within a minute.
 */
export function diskNow(): string {
  const file = path.join(tmpdir(), `quayside-bench-disk-${process.pid}`);
  const descriptor = openSync(file, 'w');
  const lengths: number[] = [];
  try {
    for (let sync = 0; sync < SYNCS; sync++) {
      const from = performance.now();
      writeSync(descriptor, PAGE);
      fdatasyncSync(descriptor);
      lengths.push(performance.now() - from);
    }
  } finally {
    closeSync(descriptor);
    rmSync(file);
  }
  const at = (part: number): string => percentile(lengths, part).toFixed(2);
  return `the disk syncs 4 KiB in p50 ${at(0.5)} ms, p90 ${at(0.9)} ms`;
}
