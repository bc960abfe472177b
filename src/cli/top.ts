import { setTimeout as delay } from 'node:timers/promises';
import type { FoundQueues } from '../model/records.ts';
import { quote } from '../util/quote.ts';
import { type CommandContext, CommandUsageError, onEndSignal, printable, tableOf } from './context.ts';
import { EXIT_CODES } from './output.ts';

/** The sort fields of the server, in the order in which the key `s` cycles through them. */
const SORTS = ['depth', 'ready', 'scheduled', 'reserved', 'age', 'in', 'out', 'name'] as const;
type QueueSort = (typeof SORTS)[number];

/** Lines of a frame that are not queues: two above the table, the table's header, and the key help. */
const OTHER_LINES = 4;
const DEFAULT_LINES = 24;

/** Switches to the alternate screen without cursor and line wrapping, and back. */
const ENTER_SCREEN = '\u001b[?1049h\u001b[?25l\u001b[?7l';
const LEAVE_SCREEN = '\u001b[?7h\u001b[?25h\u001b[?1049l';
const HOME = '\u001b[H';
const END_LINE = '\u001b[K\r\n';
const END_FRAME = '\u001b[K\u001b[J';

const CTRL_C = '\u0003';
const CTRL_D = '\u0004';
const ESCAPE = '\u001b';
const ERASE = ['\u007f', '\b'];
const ENTER = ['\r', '\n'];

const KEYS = 'q quit   s sort   r reverse   / filter';

interface TopFlags {
  readonly sort: string;
  readonly filter?: string;
  readonly limit: number;
  readonly interval: number;
}

/** Selects and orders the queues to show. */
interface TopQuery {
  readonly sort: QueueSort;
  readonly isReversed: boolean;
  readonly filter: string;
  readonly limit: number;
}

/** Shows the queues of all namespaces: live on a terminal, otherwise one page. */
export async function top(context: CommandContext, flags: TopFlags): Promise<number> {
  const { stdin, stdout } = context.io;
  const query = {
    sort: sortOf(flags.sort),
    isReversed: false,
    filter: flags.filter ?? '',
    limit: flags.limit,
  };
  const isLive = context.isHuman && stdin.isTTY === true;
  const limit = isLive ? fittingLimit(query.limit, stdout.rows) : query.limit;
  const page = await readPage(context, { ...query, limit });
  if (isLive) return new LiveTable(context, query, flags.interval, page).run();
  await context.print(page, () => pageText(page).trimEnd());
  return EXIT_CODES.done;
}

/** A page of queues that is refreshed at an interval and controlled by keys. */
class LiveTable {
  readonly #context: CommandContext;
  readonly #intervalMs: number;
  readonly #ended = new AbortController();
  /** Aborted to refresh before the interval is over. */
  #wake = new AbortController();
  #query: TopQuery;
  #page: FoundQueues;
  /** The error of the last refresh; '' if it succeeded. */
  #problem = '';
  /** The filter being typed; null: keys are commands. */
  #typed: string | null = null;

  constructor(context: CommandContext, query: TopQuery, intervalSeconds: number, page: FoundQueues) {
    this.#context = context;
    this.#query = query;
    this.#intervalMs = intervalSeconds * 1000;
    this.#page = page;
  }

  /** Resolves when a key or a signal ends it. Restores the terminal, even if the process exits for another reason. */
  async run(): Promise<number> {
    const { stdin, stdout } = this.#context.io;
    const onData = (text: string): void => this.#onInput(text);
    const onResize = (): void => this.#refreshNow();
    const end = (): void => this.#end();
    let isRestored = false;
    const restore = (): void => {
      if (isRestored) return;
      isRestored = true;
      stdin.setRawMode?.(false);
      stdout.write(LEAVE_SCREEN);
    };
    process.once('exit', restore);
    const stopListening = onEndSignal(end);
    stdin.setEncoding('utf8');
    stdin.on('data', onData).on('end', end);
    stdout.on('resize', onResize);
    try {
      stdin.setRawMode?.(true);
      stdout.write(ENTER_SCREEN);
      this.#draw();
      while (!this.#ended.signal.aborted) {
        await delay(this.#intervalMs, undefined, { signal: this.#wake.signal }).catch(() => {});
        this.#wake = new AbortController();
        await this.#refresh();
      }
      return EXIT_CODES.done;
    } finally {
      stdin.off('data', onData).off('end', end).pause();
      stdout.off('resize', onResize);
      stopListening();
      process.off('exit', restore);
      restore();
    }
  }

  #end(): void {
    this.#ended.abort();
    this.#wake.abort();
  }

  #refreshNow(): void {
    this.#draw();
    this.#wake.abort();
  }

  /** Shows a failure; the next refresh tries again. */
  async #refresh(): Promise<void> {
    const { signal } = this.#ended;
    if (signal.aborted) return;
    const limit = fittingLimit(this.#query.limit, this.#context.io.stdout.rows);
    try {
      this.#page = await readPage(this.#context, { ...this.#query, limit }, signal);
      this.#problem = '';
    } catch (error) {
      this.#problem = error instanceof Error ? error.message : String(error);
    }
    if (!signal.aborted) this.#draw();
  }

  #onInput(text: string): void {
    // Ignore keys such as arrows, which send several characters starting with Escape.
    if (text.startsWith(ESCAPE) && text.length > 1) return;
    for (const key of text) {
      if (key === CTRL_C || key === CTRL_D) this.#end();
      else if (this.#typed === null) this.#onCommand(key);
      else this.#onTyped(this.#typed, key);
    }
  }

  #onCommand(key: string): void {
    const { sort, isReversed, filter } = this.#query;
    if (key === 'q') this.#end();
    else if (key === 's') this.#show({ sort: SORTS[(SORTS.indexOf(sort) + 1) % SORTS.length] ?? sort });
    else if (key === 'r') this.#show({ isReversed: !isReversed });
    else if (key === '/') {
      this.#typed = filter;
      this.#draw();
    }
  }

  #onTyped(typed: string, key: string): void {
    if (ENTER.includes(key)) {
      this.#typed = null;
      this.#show({ filter: typed });
      return;
    }
    if (key === ESCAPE) this.#typed = null;
    else if (ERASE.includes(key)) this.#typed = [...typed].slice(0, -1).join('');
    else if (printable(key) === key) this.#typed = typed + key;
    this.#draw();
  }

  #show(change: Partial<TopQuery>): void {
    this.#query = { ...this.#query, ...change };
    this.#refreshNow();
  }

  /** Writes a frame at once, so that no partial frame is visible. Skips frames if the terminal is too slow. */
  #draw(): void {
    const { stdout } = this.#context.io;
    if (stdout.writableNeedDrain) return;
    const { sort, filter } = this.#query;
    const { matched, total } = this.#page;
    const order = isDescending(this.#query) ? 'highest first' : 'lowest first';
    const filtered = filter === '' ? '' : `, filter: ${filter}`;
    const lines = [
      `${matched} of ${total} queues by ${sort}, ${order}${filtered}`,
      this.#problem === '' ? sumsText(this.#page) : this.#problem,
      ...pageText(this.#page)
        .trimEnd()
        .split('\n')
        .slice(0, this.#height - OTHER_LINES + 1),
    ];
    while (lines.length < this.#height - 1) lines.push('');
    lines.push(this.#typed === null ? KEYS : `filter: ${this.#typed}_   (Enter applies it, Escape does not)`);
    stdout.write(`${HOME}${lines.map(printable).join(END_LINE)}${END_FRAME}`);
  }

  get #height(): number {
    return this.#context.io.stdout.rows || DEFAULT_LINES;
  }
}

async function readPage(
  context: CommandContext,
  { sort, filter, limit, ...query }: TopQuery,
  signal?: AbortSignal,
): Promise<FoundQueues> {
  const order = isDescending({ sort, ...query }) ? 'desc' : 'asc';
  const parameters = new URLSearchParams({ sort, order, limit: String(limit), ...(filter && { filter }) });
  return context.json('GET', `/queues?${parameters}`, { signal });
}

/** The default order is ascending for names and descending for numbers. */
function isDescending({ sort, isReversed }: Pick<TopQuery, 'sort' | 'isReversed'>): boolean {
  return (sort === 'name') === isReversed;
}

function fittingLimit(limit: number, lines: number | undefined): number {
  return Math.min(limit, Math.max(1, (lines || DEFAULT_LINES) - OTHER_LINES));
}

function sumsText({ sums: { size, schedSize, resvSize }, unavailable }: FoundQueues): string {
  const unavailableText = unavailable.length === 0 ? '' : `; unavailable: ${unavailable.join(', ')}`;
  return `${size} ready, ${schedSize} scheduled, ${resvSize} reserved${unavailableText}`;
}

function pageText({ queues }: FoundQueues): string {
  if (queues.length === 0) return 'no queues\n';
  return tableOf(
    queues.map(({ ns, queue, size, schedSize, resvSize, oldestReadyAge, insert, take, paused }) => ({
      queue: `${ns}/${queue}`,
      ready: size,
      scheduled: schedSize,
      reserved: resvSize,
      'age (s)': oldestReadyAge === null ? null : Math.round(oldestReadyAge),
      'in/s': rounded(insert),
      'out/s': rounded(take),
      state: paused ? 'paused' : 'running',
    })),
  );
}

function rounded(perSecond: number): number {
  return Math.round(perSecond * 10) / 10;
}

function sortOf(word: string): QueueSort {
  const found = SORTS.find((sort) => sort === word);
  if (found !== undefined) return found;
  throw new CommandUsageError(`--sort ${quote(word)} is unknown. Allowed: ${SORTS.join(', ')}.`);
}
