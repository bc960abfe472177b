import type { Mutant } from './mutants.ts';

const edit = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/${file}`, search, replace },
];

/** Bugs of exchanges that let one user harm another. */
export const EXCHANGE_USERS: readonly Mutant[] = [
  {
    name: 'the selector thread is shared by requests and not by time',
    suite: 'selector wait queue',
    edits: edit(
      'sandbox/request-queue.ts',
      'const used = Math.max(this.#usage.get(key)?.used ?? 0, this.#leastUsedMs) + ms;',
      'const used = Math.max(this.#usage.get(key)?.used ?? 0, this.#leastUsedMs) + 1;',
    ),
  },
  {
    name: 'who was idle has saved up time on the selector thread',
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
    name: 'an exchange runs on that is stored just after its owner was removed',
    suite: 'exchanges without an owner',
    edits: edit('exchange/exchanges.ts', '        void this.#stopUnowned(key);', '        {}'),
  },
  {
    name: 'a user who is removed goes on changing definitions',
    suite: 'documents of definitions',
    edits: edit('http/routes/definitions.ts', '          call.renewUser();\n', ''),
  },
  {
    name: 'a payload that is slow to parse counts against the selector',
    suite: 'overruns of exchanges',
    edits: edit(
      'exchange/forwarder.ts',
      'if (inPayload || this.#inARow.has(id))',
      'if (this.#inARow.has(id))',
    ),
  },
  {
    name: 'one element that overruns again and again stops the exchange',
    suite: 'overruns of exchanges',
    // biome-ignore lint/suspicious/noTemplateCurlyInString: the text of a source
    edits: edit('exchange/forwarder.ts', 'this.#inARow.add(id);', 'this.#inARow.add(`${id} ${count}`);'),
  },
  {
    name: 'a full destination delays elements that are for others',
    suite: 'full destinations',
    edits: edit('exchange/forwarder.ts', 'const failures = isFull(error)', 'const failures = false'),
  },
  {
    name: 'a destination takes a whole batch or nothing of it',
    suite: 'full destinations',
    edits: edit(
      'exchange/forwarder.ts',
      'if (!isFull(error) || items.length === 1) return { items, error };',
      'if (items.length > 0) return { items, error };',
    ),
  },
  {
    name: 'each element for which a selector fails writes a line to the log',
    suite: 'full destinations',
    edits: edit('exchange/forwarder.ts', 'return lineLimit.admit(', 'return true || lineLimit.admit('),
  },
  {
    name: 'an element multiplies in a loop without bound',
    suite: 'copies in loops',
    edits: edit(
      'exchange/copies.ts',
      'const count = before * Math.max(1, back);',
      'const count = Math.max(1, back);',
    ),
  },
  {
    name: 'the way back through __no_route__ is no loop',
    suite: 'loops through __no_route__',
    edits: edit('exchange/cycles.ts', 'const unroutable = hasSelector ?', 'const unroutable = false ?'),
  },
  {
    name: 'selectors run for a whole batch however much they write',
    suite: 'selectors that write much',
    edits: edit('sandbox/sandbox.ts', ' && written < this.#limits.writtenBytes', ''),
  },
  {
    name: 'selectors may write any number of bytes for an element',
    suite: 'selectors that write much',
    edits: edit('sandbox/thread/selector-thread.ts', 'if (written > elementBytes)', 'if (written < 0)'),
  },
  {
    name: 'headers that no selector changed are written again in UTF-8',
    suite: 'headers in selectors',
    edits: edit('sandbox/sandbox.ts', 'if (text === null) onNotUtf8(name, value);', ''),
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
    name: 'a create tells that a hidden exchange has the id',
    suite: 'hidden exchanges',
    edits: edit(
      'exchange/exchanges.ts',
      'const isHidden = found !== undefined && !mayKnow(caller, found.definition);',
      'const isHidden = false as boolean;',
    ),
  },
  {
    name: 'a change does not look at the version',
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
      'before === null ? zeroExchangeCounters(declaration.dst.length) : continued(before, declaration);',
      'zeroExchangeCounters(declaration.dst.length);',
    ),
  },
  {
    name: 'a slow user holds all bytes that may be in flight',
    suite: 'bytes in flight',
    edits: edit(
      'exchange/in-flight-limit.ts',
      'const fits = ownerBytes === 0 || ownerBytes',
      'const fits = ownerBytes',
    ),
  },
];
