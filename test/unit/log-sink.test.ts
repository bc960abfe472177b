import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { closeSync, constants, mkdtempSync, openSync, readSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { LogSink } from '../../src/app/log.ts';
import { systemClock } from '../../src/util/clock.ts';
import { until } from '../support/until.ts';

const LINE = `${'x'.repeat(1023)}\n`;

describe('Log lines that are written to a pipe', {
  skip: process.platform === 'win32' && 'Windows has no mkfifo',
}, () => {
  let folder: string;
  let pipe: number;
  let lost = 0;
  let sink: LogSink;

  before(() => {
    folder = mkdtempSync(join(tmpdir(), 'quayside-log-'));
    execFileSync('mkfifo', [join(folder, 'pipe')]);
    pipe = openSync(join(folder, 'pipe'), constants.O_RDWR | constants.O_NONBLOCK);
    sink = new LogSink(pipe, systemClock, (lines) => {
      lost += lines;
      sink.write(`${lines} lines are missing\n`);
    });
  });

  after(() => {
    closeSync(pipe);
    rmSync(folder, { recursive: true });
  });

  it('are all written in order when a flush ends', async () => {
    const lines = Array.from({ length: 20 }, (_, i) => `line ${i}\n`);
    for (const line of lines) sink.write(line);
    await sink.flush(60_000);
    assert.equal(readAll(), lines.join(''));
  });

  it('are buffered up to a limit while the pipe is not read, then dropped and counted', async () => {
    const written = 6 * 1024;
    for (let i = 0; i < written; i++) sink.write(LINE);
    const before = performance.now();
    await sink.flush(20);
    assert.ok(performance.now() - before < 10_000, 'a flush ends after its timeout');
    let read = '';
    while (!read.endsWith('are missing\n')) {
      read += readAll();
      await sink.flush(20);
    }
    const whole = read.split('\n').filter((line) => line.length === 1023).length;
    assert.ok(lost > 0 && read.endsWith(`${lost} lines are missing\n`));
    assert.equal(whole + lost, written);
    assert.ok(whole >= 4 * 1024, `${whole} lines were kept`);
  });

  it('are dropped and counted if they are too long to buffer, without affecting the next ones', async () => {
    sink.write('x'.repeat(5 * 1024 * 1024));
    lost = 0;
    sink.write('next\n');
    await sink.flush(60_000);
    assert.equal(readAll(), 'next\n1 lines are missing\n');
  });

  it('are written again once the pipe has a reader, however many were dropped before', async () => {
    const reader = openSync(join(folder, 'pipe'), constants.O_RDONLY | constants.O_NONBLOCK);
    const writer = openSync(join(folder, 'pipe'), constants.O_WRONLY | constants.O_NONBLOCK);
    closeSync(pipe);
    closeSync(reader);
    const losing = new LogSink(writer, systemClock, (lines) => losing.write(`${lines} lines are missing\n`));
    // The pipe has no reader, so each write fails.
    for (let i = 0; i < 6 * 1024; i++) losing.write(LINE);
    await losing.flush(20);
    pipe = openSync(join(folder, 'pipe'), constants.O_RDONLY | constants.O_NONBLOCK);
    losing.write(LINE);
    let read = '';
    await until(async () => {
      // The line may have been added while a write was failing: its lines are retried with the next line, or by a
      // flush.
      await losing.flush(20);
      read += readAll();
      return /\d+ lines are missing\n/.test(read);
    });
    closeSync(writer);
  });

  function readAll(): string {
    const buffer = Buffer.alloc(1024 * 1024);
    let text = '';
    try {
      for (;;) text += buffer.toString('latin1', 0, readSync(pipe, buffer));
    } catch (error) {
      assert.equal((error as NodeJS.ErrnoException).code, 'EAGAIN');
    }
    return text;
  }
});
