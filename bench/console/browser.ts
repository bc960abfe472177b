import { type Browser, type BrowserContext, type CDPSession, chromium, type Page } from 'playwright-core';

/** The browser of the console's tests; `scripts/debian-packages.sh chromium-headless-shell` installs it. */
const CHROMIUM = process.env.CHROMIUM ?? '/usr/bin/chromium-headless-shell';
/** Frames follow each other as fast as they are drawn; otherwise each would take a screen's 16.7 ms. */
const AS_FAST_AS_POSSIBLE = ['--disable-frame-rate-limit', '--disable-gpu-vsync'];

/** How long to wait for the content of a page; after that, the error contains what the page shows instead. */
const LONGEST_MS = 60_000;

/** A page of the console, and how to recognize its content. */
export interface MeasuredPage {
  readonly name: string;
  /** The URL fragment, such as `#/queues`. */
  readonly where: string;
  /** A CSS selector of an element that appears with the content. */
  readonly content: string;
}

export interface OpenOptions {
  /** Runs in the tab before the console's own code. */
  readonly script?: string;
  /** The factor by which the processor is throttled. */
  readonly slowdown?: number;
}

/** A tab, with the DevTools session that measures it. */
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

  /** Opens an empty tab. The caller closes its page. */
  async tab({ script, slowdown = 1 }: OpenOptions = {}): Promise<OpenTab> {
    const page = await this.#context.newPage();
    if (script !== undefined) await page.addInitScript(script);
    const devtools = await this.#context.newCDPSession(page);
    // Processor time, so that other programs on the machine do not count.
    await devtools.send('Performance.enable', { timeDomain: 'threadTicks' });
    await devtools.send('Emulation.setCPUThrottlingRate', { rate: slowdown });
    return { page, devtools };
  }

  /** Loads a page of the console. @returns ms from the start of the navigation until the page shows its content */
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
 * Defines `scrollOn()` in a page, which scrolls the longest scrollable part on, and back from its end. Evaluates to
 * false if nothing scrolls.
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
  /** Times between frames, ms. */
  readonly frames: readonly number[];
  /** Processor time of the page's main thread per frame for some frames, ms. */
  readonly processor: readonly number[];
}

/** Scrolls a page for this many frames. @returns null if nothing scrolls */
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
    // The second frame starts when the first one is drawn.
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
