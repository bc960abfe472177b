import type { Mutant } from './mutants.ts';

const suite = 'tracing';
const edit = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/${file}`, search, replace },
];

/** Bugs of spans and of their export to a collector. */
export const TRACING: readonly Mutant[] = [
  {
    name: 'a request starts a trace although its traceparent names one',
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
    name: 'a pending span retains the header from which its trace id was sliced',
    suite,
    edits: edit('tracing/tracer.ts', 'traceId: ownString(traceId)', 'traceId'),
  },
  {
    name: 'the flag of a sender that does not record its trace is ignored',
    suite,
    edits: edit('tracing/tracer.ts', 'parent?.isSampled ?? (linked', 'parent !== null || (linked'),
  },
  {
    name: 'with a ratio, a step of an exchange is not recorded although the insert of its element is',
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
    name: 'a traceparent of the forbidden version is accepted',
    suite,
    edits: edit('tracing/tracer.ts', '/^(?!ff)([0-9a-f]{2})-', '/^([0-9a-f]{2})-'),
  },
  {
    name: 'an insert of a session does not continue the trace of its sender',
    suite,
    edits: edit('tracing/traced-storage.ts', 'current?.context ?? singleContext', 'current?.context ?? null'),
  },
  {
    name: 'the take of a session belongs to the trace of the insert, instead of being linked with it',
    suite,
    edits: edit('tracing/traced-storage.ts', "type === 'send' && contexts.length", 'contexts.length'),
  },
  {
    name: 'a full queue accepts more spans',
    suite,
    edits: edit('tracing/exporter.ts', ' || this.#queue.length >= this.#options.maxQueue', ''),
  },
  {
    name: 'spans that arrived while others were being sent wait forever',
    suite: 'span exporter',
    edits: edit(
      'tracing/exporter.ts',
      'if (this.#queue.length > 0 && this.#stopping === null) this.#schedule();',
      '',
    ),
  },
  {
    name: 'a request that a busy collector rejected is not repeated',
    suite,
    edits: edit('tracing/exporter.ts', 'new Set([429, 502, 503, 504])', 'new Set()'),
  },
  {
    name: 'spans that the collector rejected are repeated, and block all others',
    suite,
    edits: edit('tracing/exporter.ts', 'isFinal || attempt === MAX_ATTEMPTS', 'attempt === MAX_ATTEMPTS'),
  },
  {
    name: 'the remaining spans are not sent at a stop',
    suite,
    edits: edit(
      'tracing/exporter.ts',
      '      this.#send();\n      await this.#sending;\n',
      '      this.#queue.shift();\n',
    ),
  },
  {
    name: "the collector's password is sent percent-encoded, as in the URL",
    suite,
    edits: edit('app/tracing.ts', 'decodeURIComponent(password)', 'password'),
  },
];
