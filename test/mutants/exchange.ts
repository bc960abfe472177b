import type { Mutant } from './mutants.ts';

const edit = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/${file}`, search, replace },
];

/** Bugs of exchanges with which one user can harm another. */
export const EXCHANGE_USERS: readonly Mutant[] = [
  {
    name: 'the selector thread is shared by number of requests instead of time',
    suite: 'selector wait queue',
    edits: edit(
      'sandbox/request-queue.ts',
      'const used = Math.max(this.#usage.get(key)?.used ?? 0, this.#leastUsedMs) + ms;',
      'const used = Math.max(this.#usage.get(key)?.used ?? 0, this.#leastUsedMs) + 1;',
    ),
  },
  {
    name: 'an idle user saves up time on the selector thread',
    suite: 'selector wait queue',
    edits: [
      ...edit('sandbox/request-queue.ts', 'else usage.used = Math.max(usage.used, this.#leastUsedMs);', ''),
      ...edit(
        'sandbox/request-queue.ts',
        'Math.max(this.#usage.get(key)?.used ?? 0, this.#leastUsedMs) + ms',
        '(this.#usage.get(key)?.used ?? 0) + ms',
      ),
    ],
  },
  {
    name: 'the reservations of an exchange are stored',
    suite: 'exchanges',
    edits: edit('exchange/loop.ts', '          isTransient: reserves,\n', ''),
  },
  {
    name: 'an exchange that is stored just after its owner was removed keeps running',
    suite: 'exchanges without an owner',
    edits: edit('exchange/exchanges.ts', '        void this.#stopUnowned(key);', '        {}'),
  },
  {
    name: 'a removed user continues to change definitions',
    suite: 'documents of definitions',
    edits: edit('http/routes/definitions.ts', '          call.renewUser();\n', ''),
  },
  {
    name: 'the time to parse a slow payload counts against the selector',
    suite: 'overruns of exchanges',
    edits: edit(
      'exchange/forwarder.ts',
      'if (inPayload || this.#inARow.has(id))',
      'if (this.#inARow.has(id))',
    ),
  },
  {
    name: 'one element that overruns repeatedly stops the exchange',
    suite: 'overruns of exchanges',
    // biome-ignore lint/suspicious/noTemplateCurlyInString: the text of a source
    edits: edit('exchange/forwarder.ts', 'this.#inARow.add(id);', 'this.#inARow.add(`${id} ${count}`);'),
  },
  {
    name: 'a full destination delays elements that are for others',
    suite: 'full destinations',
    edits: edit('exchange/forwarder.ts', 'const failures = isFullError(error)', 'const failures = false'),
  },
  {
    name: 'a destination stores a whole batch or nothing of it',
    suite: 'full destinations',
    edits: edit(
      'exchange/forwarder.ts',
      'if (!isFullError(error) || items.length === 1) return { items, error };',
      'if (items.length > 0) return { items, error };',
    ),
  },
  {
    name: 'a log line is written for every element for which a selector fails',
    suite: 'full destinations',
    edits: edit(
      'exchange/forwarder.ts',
      'return context.lineLimit.admit(',
      'return true || context.lineLimit.admit(',
    ),
  },
  {
    name: 'copies of an element in a loop are not bounded',
    suite: 'copies in loops',
    edits: edit(
      'exchange/copies.ts',
      'const count = before * Math.max(1, back);',
      'const count = Math.max(1, back);',
    ),
  },
  {
    name: 'a loop through __no_route__ is not detected',
    suite: 'loops through __no_route__',
    edits: edit('exchange/cycles.ts', 'const unroutable = hasSelector ?', 'const unroutable = false ?'),
  },
  {
    name: 'selectors run for a whole batch even if they write many bytes',
    suite: 'selectors that write much',
    edits: edit('sandbox/sandbox.ts', ' && written < this.#limits.writtenBytes', ''),
  },
  {
    name: 'the bytes that a selector writes for an element are not bounded',
    suite: 'selectors that write much',
    edits: edit('sandbox/thread/selector-thread.ts', 'if (written > elementBytes)', 'if (written < 0)'),
  },
  {
    name: 'headers that no selector changed are re-encoded as UTF-8',
    suite: 'headers in selectors',
    edits: edit('sandbox/sandbox.ts', 'if (text === null) notUtf8.push([index, name, value]);', ''),
  },
  {
    name: 'a record shows the selector of a destination that its reader may not see',
    suite: 'hidden exchanges',
    edits: edit(
      'exchange/record.ts',
      "{ q: '', ns: '', hidden: true }",
      "{ q: '', ns: '', hidden: true, ...(selector !== undefined && { selector }) }",
    ),
  },
  {
    name: 'the error of a create reveals that a hidden exchange has the id',
    suite: 'hidden exchanges',
    edits: edit(
      'exchange/exchanges.ts',
      'const isHidden = found !== undefined && !mayKnow(caller, found.definition);',
      'const isHidden = false as boolean;',
    ),
  },
  {
    name: 'a change ignores the version',
    suite: 'changed exchanges',
    edits: edit(
      'exchange/exchanges.ts',
      'if (versions !== null && !versions.has(versionOf(stored.declaration)))',
      'if (versions === undefined)',
    ),
  },
  {
    name: 'a changed exchange counts from zero',
    suite: 'changed exchanges',
    edits: edit(
      'exchange/exchange.ts',
      'continuedCounters(before, declaration);',
      'zeroExchangeCounters(declaration.dst.length);',
    ),
  },
  {
    name: 'a slow user can use up all bytes allowed in flight',
    suite: 'bytes in flight',
    edits: edit('exchange/in-flight-limit.ts', 'guaranteed: 1,', 'guaranteed: 0,'),
  },
  {
    name: 'loops keep what they have taken, however much all of them have',
    suite: 'taken elements',
    edits: edit(
      'exchange/loop.ts',
      'context.takenLimit.tryEnter(this.#exchange, bytes);',
      'context.takenLimit.tryEnter(this.#exchange, 1);',
    ),
  },
];
