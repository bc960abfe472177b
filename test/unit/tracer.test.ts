import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { type Span, Tracer } from '../../src/tracing/tracer.ts';
import { FakeClock } from '../support/clock.ts';

const HOUR_MS = 3_600_000;

describe('The time of spans', () => {
  function begun(): { clock: FakeClock; next: () => Span } {
    const clock = new FakeClock();
    const tracer = new Tracer({ clock, ratio: 1, onEnd: () => {} });
    const next = (): Span => {
      const span = tracer.begin({ name: 'insert N/orders', kind: 'internal', parent: null });
      clock.advance(2.5);
      tracer.end(span);
      return span;
    };
    return { clock, next };
  }

  it('follows the wall clock after the machine slept for hours', () => {
    const { clock, next } = begun();
    assert.equal(next().startedAt, clock.now() - 2);
    clock.setWallTime(clock.now() + 8 * HOUR_MS);
    const span = next();
    assert.ok(Math.abs(span.startedAt - clock.now()) < 10, `${span.startedAt} at ${clock.now()}`);
    assert.equal(span.endedAt, span.startedAt + 2.5);
  });

  it('does not end before its start if the wall clock is set back before its end', () => {
    const clock = new FakeClock();
    const tracer = new Tracer({ clock, ratio: 1, onEnd: () => {} });
    const span = tracer.begin({ name: 'insert N/orders', kind: 'internal', parent: null });
    clock.setWallTime(clock.now() - HOUR_MS);
    tracer.end(span);
    assert.equal(span.endedAt, span.startedAt);
  });

  it('does not jump when a time server corrects the clock slightly', () => {
    const { clock, next } = begun();
    const first = next().startedAt;
    clock.setWallTime(clock.now() - 200);
    assert.equal(next().startedAt, first + 2.5);
  });
});
