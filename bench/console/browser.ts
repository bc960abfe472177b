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
    await devtools.send('Performance.enable');
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
 * Scrolls the longest part of a page down and up, so many frames long, and measures each.
 * @returns ms of each frame; empty if nothing scrolls
 */
export async function scrollFrames({ page }: OpenTab, frames: number): Promise<number[]> {
  return (await page.evaluate(
    `new Promise((resolve) => {
      const all = [document.scrollingElement, ...document.querySelectorAll('.table-frame, .scrolls')];
      const room = (one) => one.scrollHeight - one.clientHeight;
      const box = all.sort((a, b) => room(b) - room(a))[0];
      if (room(box) < 100) return resolve([]);
      const taken = [];
      let last = null;
      let step = 60;
      const frame = (at) => {
        if (last !== null) taken.push(at - last);
        last = at;
        if (taken.length >= ${frames}) return resolve(taken);
        if (box.scrollTop + step > room(box) || box.scrollTop + step < 0) step = -step;
        box.scrollTop += step;
        requestAnimationFrame(frame);
      };
      requestAnimationFrame(frame);
    })`,
  )) as number[];
}
