import type { Mutant } from './mutants.ts';

const suite = 'tracing';
const edit = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/${file}`, search, replace },
];

/** Bugs of spans, and of their way to a collector. */
export const TRACING: readonly Mutant[] = [
  {
    name: 'a request begins a trace although its traceparent names one',
    suite,
    edits: edit('http/traced-request.ts', "kind: 'server', parent });", "kind: 'server', parent: null });"),
  },
  {
    name: 'the call of an engine does not belong to the trace of its request',
    suite,
    edits: edit(
      'http/traced-request.ts',
      'tracer.within(span, run);\n}\n\n/** Continues',
      'run();\n}\n\n/** Continues',
    ),
  },
  {
    name: 'probes and scrapes are recorded',
    suite,
    edits: edit('http/traced-request.ts', "new Set(['live', 'ready', 'metrics'])", 'new Set()'),
  },
  {
    name: 'a get is not linked with the insert of its element',
    suite,
    edits: edit('http/traced-request.ts', 'span.link(contextIn(headers));', ''),
  },
  {
    name: 'a span shows the query of its request, which may hold a lease token',
    suite,
    edits: edit('http/traced-request.ts', 'truncated(call.path)', "request.url ?? ''"),
  },
  {
    name: 'a span that waits keeps the header that its trace was cut out of',
    suite,
    edits: edit('tracing/tracer.ts', 'traceId: ownString(traceId)', 'traceId'),
  },
  {
    name: 'the flag of a sender that does not record its trace is ignored',
    suite,
    edits: edit('tracing/tracer.ts', 'parent?.isSampled ?? (linked', 'parent !== null || (linked'),
  },
  {
    name: 'with a ratio a step of an exchange is lost, although what inserted its element is recorded',
    suite,
    edits: edit('tracing/tracer.ts', 'linked.some((context) => context.isSampled) || ', ''),
  },
  {
    name: 'the ratio is not applied',
    suite,
    edits: edit(
      'tracing/tracer.ts',
      'this.#threshold = ratio * RATIO_RANGE;',
      'this.#threshold = RATIO_RANGE;',
    ),
  },
  {
    name: 'a traceparent of the forbidden version is believed',
    suite,
    edits: edit('tracing/tracer.ts', '/^(?!ff)([0-9a-f]{2})-', '/^([0-9a-f]{2})-'),
  },
  {
    name: 'what a session inserts does not continue the trace of its sender',
    suite,
    edits: edit('tracing/traced-storage.ts', 'current?.context ?? singleContext', 'current?.context ?? null'),
  },
  {
    name: 'the take of a session belongs to the trace of the insert, instead of being linked with it',
    suite,
    edits: edit('tracing/traced-storage.ts', "type === 'send' && contexts.length", 'contexts.length'),
  },
  {
    name: 'a full queue of spans takes more',
    suite,
    edits: edit('tracing/exporter.ts', ' || this.#queue.length >= this.#options.maxQueue', ''),
  },
  {
    name: 'spans that came while others were sent wait for ever',
    suite: 'span exporter',
    edits: edit(
      'tracing/exporter.ts',
      'if (this.#queue.length > 0 && this.#stopping === null) this.#schedule();',
      '',
    ),
  },
  {
    name: 'a request that the collector was too busy for is given up',
    suite,
    edits: edit('tracing/exporter.ts', 'new Set([429, 502, 503, 504])', 'new Set()'),
  },
  {
    name: 'spans that the collector rejected are repeated, and hold up all others',
    suite,
    edits: edit('tracing/exporter.ts', 'isFinal || attempt === MAX_ATTEMPTS', 'attempt === MAX_ATTEMPTS'),
  },
  {
    name: 'what is left at a stop is not sent',
    suite,
    edits: edit(
      'tracing/exporter.ts',
      '      this.#send();\n      await this.#sending;\n',
      '      this.#queue.shift();\n',
    ),
  },
  {
    name: 'the password of the collector is sent as it is written in the URL',
    suite,
    edits: edit('app/tracing.ts', 'decodeURIComponent(password)', 'password'),
  },
];
