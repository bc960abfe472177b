import { type Browser, type BrowserContext, type CDPSession, chromium, type Page } from 'playwright-core';

/** Debian's; `scripts/debian-packages.sh chromium` installs it. */
const CHROMIUM = process.env.CHROMIUM ?? '/usr/bin/chromium';
/** Frames follow each other as fast as they are drawn: else each would take the 16.7 ms between two of a screen. */
const AS_FAST_AS_POSSIBLE = ['--disable-frame-rate-limit', '--disable-gpu-vsync'];

/** A page without its content by then will not have it: the error says what it shows instead. */
const LONGEST_MS = 60_000;

/** Where a page is in the console, and what is there when it shows its content. */
export interface MeasuredPage {
  readonly name: string;
  /** Such as `#/queues`. */
  readonly where: string;
  /** A CSS selector. */
  readonly content: string;
}

export interface OpenOptions {
  /** Runs in the tab before the console's own code. */
  readonly script?: string;
  /** By how much the processor is slowed down. */
  readonly slowdown?: number;
}

/** A tab, with the protocol that says what it costs. */
export interface OpenTab {
  readonly page: Page;
  readonly devtools: CDPSession;
}

/** Chromium, signed in to the console of one server. */
export class ConsoleBrowser {
  readonly #browser: Browser;
  readonly #context: BrowserContext;
  readonly #url: string;

  private constructor(browser: Browser, context: BrowserContext, url: string) {
    this.#browser = browser;
    this.#context = context;
    this.#url = url;
  }

  static async open(url: string, login: { readonly user: string; readonly password: string }) {
    const args = process.getuid?.() === 0 ? ['--no-sandbox', ...AS_FAST_AS_POSSIBLE] : AS_FAST_AS_POSSIBLE;
    const browser = await chromium.launch({ executablePath: CHROMIUM, args });
    const context = await browser.newContext({ viewport: { width: 1440, height: 900 } });
    const answer = await context.request.post(`${url}/console/session`, { data: login });
    if (!answer.ok()) throw new Error(`The sign-in was rejected: ${answer.status()} ${await answer.text()}`);
    return new ConsoleBrowser(browser, context, url);
  }

  /** An empty tab. Its user closes the page. */
  async tab({ script, slowdown = 1 }: OpenOptions = {}): Promise<OpenTab> {
    const page = await this.#context.newPage();
    if (script !== undefined) await page.addInitScript(script);
    const devtools = await this.#context.newCDPSession(page);
    // Processor time: what other programs take of the machine does not count.
    await devtools.send('Performance.enable', { timeDomain: 'threadTicks' });
    await devtools.send('Emulation.setCPUThrottlingRate', { rate: slowdown });
    return { page, devtools };
  }

  /** Loads the console at a page. @returns ms from the navigation's start until the page showed its content */
  async load({ page }: OpenTab, { where, content }: MeasuredPage): Promise<number> {
    await page.goto(`${this.#url}/console/${where}`, { waitUntil: 'commit' });
    return Number(
      await page.evaluate(
        `new Promise((resolve, reject) => {
          const from = performance.now();
          const look = () => {
            if (document.querySelector(${JSON.stringify(content)}) !== null) resolve(performance.now());
            else if (performance.now() - from > ${LONGEST_MS}) reject(new Error(document.body.innerText.slice(0, 1000)));
            else requestAnimationFrame(look);
          };
          look();
        })`,
      ),
    );
  }

  async close(): Promise<void> {
    await this.#browser.close();
  }
}

/**
 * Makes `scrollOn()` in a page: it scrolls the longest part of it further, or back from its end; undefined if nothing
 * scrolls.
 */
const SCROLL = `(() => {
  const all = [document.scrollingElement, ...document.querySelectorAll('.table-frame, .scrolls')];
  const room = (one) => one.scrollHeight - one.clientHeight;
  const box = all.sort((a, b) => room(b) - room(a))[0];
  // Read once: asking for it in a frame would have the page laid out there and then.
  const end = room(box);
  if (end < 100) return false;
  let step = 60;
  let top = 0;
  window.scrollOn = () => {
    if (top + step > end || top + step < 0) step = -step;
    top += step;
    box.scrollTop = top;
  };
  return true;
})()`;

export interface ScrollCost {
  /** ms from each frame to the next. */
  readonly frames: readonly number[];
  /** ms of the page's thread for each of some frames. */
  readonly processor: readonly number[];
}

/** Scrolls a page for so many frames. @returns null if nothing scrolls */
export async function scroll(tab: OpenTab, frames: number): Promise<ScrollCost | null> {
  const { page } = tab;
  if (!(await page.evaluate(SCROLL))) return null;
  const taken = (await page.evaluate(
    `new Promise((resolve) => {
      const taken = [];
      let last = null;
      const frame = (at) => {
        if (last !== null) taken.push(at - last);
        last = at;
        if (taken.length >= ${frames}) return resolve(taken);
        scrollOn();
        requestAnimationFrame(frame);
      };
      requestAnimationFrame(frame);
    })`,
  )) as number[];
  const processor: number[] = [];
  let before = await processorTime(tab);
  for (let i = 0; i < frames / 4; i += 1) {
    // The second frame begins when the first is drawn.
    await page.evaluate(
      'new Promise((done) => requestAnimationFrame(() => { scrollOn(); requestAnimationFrame(done); }))',
    );
    const now = await processorTime(tab);
    processor.push(now - before);
    before = now;
  }
  return { frames: taken, processor };
}

async function processorTime({ devtools }: OpenTab): Promise<number> {
  const { metrics } = await devtools.send('Performance.getMetrics');
  return (metrics.find(({ name }) => name === 'TaskDuration')?.value ?? Number.NaN) * 1000;
}
