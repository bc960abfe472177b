import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { SpanExporter } from '../../src/tracing/exporter.ts';
import { newSpanId, newTraceId, Span } from '../../src/tracing/tracer.ts';
import { type Clock, systemClock } from '../../src/util/clock.ts';
import { TraceReceiver } from '../support/trace-receiver.ts';

/** More turns of the microtask queue than there are between the end of a request and the end of its batch. */
const MAX_TURNS = 12;
/** How long a batch waits for further spans; here it is sent in the next turn of the event loop. */
const GATHER_MS = 1_000;

describe('An exporter of spans', () => {
  let receiver: TraceReceiver;

  beforeEach(async () => {
    receiver = await TraceReceiver.start();
  });
  afterEach(() => receiver.stop());

  const spanOf = (name: string): Span => {
    const context = { traceId: newTraceId(), spanId: newSpanId(), isSampled: true };
    const span = new Span({ name, kind: 'internal', context, parentId: null, startedAt: Date.now() });
    span.end(span.startedAt);
    return span;
  };

  const exporterWith = (clock: Clock): SpanExporter =>
    new SpanExporter({
      collector: { url: new URL('/v1/traces', receiver.url), headers: {} },
      resource: { attributes: {}, version: 'test' },
      maxQueue: 100,
      clock,
      random: () => 0,
      log: { info: assert.fail, warn: assert.fail },
    });

  it('sends a span that is added at any point while a batch ends', { timeout: 60_000 }, async () => {
    for (let turns = 0; turns <= MAX_TURNS; turns += 1) {
      let isFirst = true;
      const clock: Clock = {
        ...systemClock,
        after(delayMs, run) {
          if (delayMs === GATHER_MS) {
            const immediate = setImmediate(run);
            return () => clearImmediate(immediate);
          }
          // The timeout of a request, which is cancelled when its response arrives.
          const begins = isFirst;
          isFirst = false;
          return () => begins && addAfter(turns);
        },
      };
      const exporter = exporterWith(clock);
      const addAfter = (left: number): void => {
        if (left === 0) exporter.add(spanOf(`late by ${turns}`));
        else queueMicrotask(() => addAfter(left - 1));
      };
      exporter.add(spanOf('first'));
      await receiver.span(({ name }) => name === `late by ${turns}`);
      await exporter.stop();
      assert.deepEqual(exporter.counts, { exported: 2, dropped: 0, failed: 0 });
    }
  });
});
