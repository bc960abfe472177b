import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import type { SuiteContext, TestContext } from 'node:test';
import {
  type Browser,
  type BrowserContext,
  type BrowserContextOptions,
  chromium,
  type Page,
} from 'playwright-core';
import { needDebian } from '../support/debian.ts';
import { ServerInProcess } from '../support/server-in-process.ts';
import { SlowMachine } from './slow-machine.ts';

export const ADMIN = { user: 'admin', password: 'secret' };
/** May only read `jobs` and `N`. */
export const READER = { user: 'reader', password: 'reading' };

/** May browse and manage `N`, but sees no bodies. */
export const MASKED = { user: 'masked', password: 'looking' };

/** May only write `jobs`. */
export const WRITER = { user: 'writer', password: 'writing' };

/** May read and manage `N`, and write `jobs`. */
export const MOVER = { user: 'mover', password: 'moving' };

type Namespaces = Readonly<Record<string, Readonly<Record<string, unknown>>>>;

const NAMESPACES: Namespaces = {
  // For CONSOLE_QUEUES=10000, which is the default limit.
  N: { url: 'sqlite:N.db', maxQueues: 20_000 },
  jobs: { url: 'sqlite:jobs.db', deadLetter: { maxTries: 1 } },
  events: { url: 'sqlite:events.db', variant: 'stream', groups: ['billing', 'shipping'] },
};

/** The configuration of the server and of further nodes. */
export function configOf(namespaces: Namespaces): Record<string, unknown> {
  const reading = { password: READER.password, rights: { jobs: ['read'], N: ['read'] } };
  const masked = { password: MASKED.password, rights: { N: ['browse', 'manage'] }, maskBodies: true };
  const admin = { password: ADMIN.password };
  const writing = { password: WRITER.password, rights: { jobs: ['write'] } };
  const moving = { password: MOVER.password, rights: { N: ['read', 'manage'], jobs: ['write'] } };
  const others = {
    [READER.user]: reading,
    [MASKED.user]: masked,
    [WRITER.user]: writing,
    [MOVER.user]: moving,
  };
  const users = { [ADMIN.user]: admin, ...('jobs' in namespaces && others) };
  return { http: { users }, namespaces };
}

/**
 * Debian's Chromium without the parts for a window, which take more than half of its processor time;
 * `scripts/debian-packages.sh chromium-headless-shell` installs it.
 */
const CHROMIUM = process.env.CHROMIUM ?? '/usr/bin/chromium-headless-shell';
/**
 * The pages of a context share a process. Without the first option the browser also starts a spare process, and a page
 * takes a seventh more processor time.
 */
const CHROMIUM_ARGS = ['--renderer-process-limit=1', '--in-process-gpu'];
/** An address without a page, so that the console there requests and refreshes nothing of its own. */
const NOWHERE = '#/nowhere';
/** Rules of axe, by their tags. */
const RULES = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'];
const AXE = createRequire(import.meta.url).resolve('axe-core/axe.min.js');

/** A real server with the console built from the sources, and a browser. */
export class OpenedConsole {
  /** The server as pages and programs reach it. */
  readonly server: { readonly url: string };
  readonly #server: ServerInProcess;
  readonly #slow: SlowMachine | null;
  readonly #browser: Browser;
  /** The contexts with pages that {@link check} closes. */
  readonly #opened = new Set<BrowserContext>();
  /** Cookies of users who have signed in: a sign-in takes a fifth of a second of processor time. */
  readonly #signedIn = new Map<string, Awaited<ReturnType<BrowserContext['storageState']>>>();
  /** Contexts for the pages of these users in all tests: each context starts a process and compiles the console. */
  readonly #shared = new Map<string, BrowserContext>();
  readonly #browserErrors: string[] = [];
  /** The page of {@link samePage}, and whether the present test has it. */
  #same: Page | null = null;
  #isSameUsed = false;

  private constructor(server: ServerInProcess, browser: Browser, slow: SlowMachine | null) {
    this.server = slow ?? server;
    this.#server = server;
    this.#slow = slow;
    this.#browser = browser;
  }

  /** @param namespaces default to three on SQLite */
  static async open(namespaces = NAMESPACES): Promise<OpenedConsole> {
    await import('../../scripts/console.ts');
    if (process.env.CHROMIUM === undefined) needDebian('chromium-headless-shell');
    const [server, browser] = await Promise.all([
      ServerInProcess.start({ config: configOf(namespaces) }),
      chromium.launch({
        executablePath: CHROMIUM,
        args: [...CHROMIUM_ARGS, ...(process.getuid?.() === 0 ? ['--no-sandbox'] : [])],
      }),
    ]);
    const seed = process.env.CONSOLE_SLOW;
    const slow = seed === undefined ? null : await SlowMachine.start(Number(seed), server.url);
    return new OpenedConsole(server, browser, slow);
  }

  /** Opens a page with no stored preferences, signed in. If the browser reports an error, {@link check} fails. */
  async page(
    where = '#/',
    options: {
      readonly who?: typeof ADMIN;
      readonly width?: number;
      readonly theme?: 'light' | 'dark';
      readonly height?: number;
      /** The URL of a proxy for the server. The page signs in there by the form. */
      readonly behind?: string;
      /** The time zone of the browser. */
      readonly timezoneId?: string;
      /** Whether the test makes requests of the page fail, each of which the browser reports. */
      readonly isFailing?: boolean;
      /** Whether the page has a browser context of its own, because the test changes its clock, network or cache. */
      readonly isAlone?: boolean;
    } = {},
  ): Promise<Page> {
    const {
      who = ADMIN,
      width = 1280,
      height = 900,
      theme = 'light',
      behind,
      timezoneId,
      isFailing = false,
      isAlone = behind !== undefined || timezoneId !== undefined,
    } = options;
    const storageState = behind === undefined ? this.#signedIn.get(who.user) : undefined;
    const shared = isAlone ? undefined : this.#shared.get(who.user);
    const context =
      shared ??
      (await this.#newContext({
        ...(storageState !== undefined && { storageState }),
        ...(timezoneId !== undefined && { timezoneId }),
      }));
    if (!isAlone && shared === undefined) {
      // The process of a context ends with its last page, so this one stays open.
      await (await context.newPage()).goto(`${this.server.url}/livez`);
      this.#shared.set(who.user, context);
    }
    this.#opened.add(context);
    const page = await context.newPage();
    await page.setViewportSize({ width, height });
    await page.emulateMedia({ colorScheme: theme });
    await this.#slow?.slowDown(page);
    page.on('pageerror', (error) => this.#browserErrors.push(error.message));
    page.on('dialog', (dialog) => {
      this.#browserErrors.push(`a page showed: ${dialog.message()}`);
      void dialog.dismiss();
    });
    page.on('console', (message) => {
      // Before the sign-in there is no session (401); a selector with a mistake is rejected (400), and the page says
      // so.
      const isExpected = /status of 4(?:0[01]|12)\b/.test(message.text()) || message.type() !== 'error';
      // An element may be gone, and its page says so.
      const isOfElement =
        /status of 404\b/.test(message.text()) && message.location().url.includes('/elements/');
      const isOfRequest = isFailing && message.text().startsWith('Failed to load resource');
      if (!isExpected && !isOfElement && !isOfRequest) this.#browserErrors.push(message.text());
    });
    await page.goto(`${behind ?? this.server.url}/console/${where}`);
    if (storageState === undefined) {
      await this.signIn(page, who);
      if (behind === undefined) this.#signedIn.set(who.user, await context.storageState());
    }
    await page.locator('#page h1').waitFor();
    return page;
  }

  /**
   * Opens an address in a page of the administrator that tests share: to open another one takes a sixth of a second of
   * processor time. For tests that do not change what the page receives, nor how it was opened. Its context is its own,
   * because pages of one context adopt each other's preferences.
   */
  async samePage(where: string): Promise<Page> {
    this.#same ??= await this.page(NOWHERE, { isAlone: true });
    this.#isSameUsed = true;
    await this.#same.goto(`${this.server.url}/console/${where}`);
    await this.#same.locator('#page h1').filter({ hasNotText: 'Page not found' }).waitFor();
    return this.#same;
  }

  /** Leaves the shared page for the next test, if it has no preferences now. */
  async #leaveSame(page: Page): Promise<void> {
    await page.goto(`${this.server.url}/console/${NOWHERE}`);
    await page.getByRole('heading', { name: 'Page not found' }).waitFor();
    const isUnchanged = await page.evaluate(
      `document.querySelectorAll('.toast button').forEach((dismiss) => dismiss.click());
       localStorage.length === 0`,
    );
    if (!isUnchanged) this.#dropSame();
  }

  /** Lets {@link check} close the shared page. */
  #dropSame(): void {
    if (this.#same !== null) this.#opened.add(this.#same.context());
    this.#same = null;
  }

  async #newContext(
    options: Pick<BrowserContextOptions, 'storageState' | 'timezoneId'>,
  ): Promise<BrowserContext> {
    const context = await this.#browser.newContext(options);
    // Longer than the default: a busy machine must not fail a test. Nothing is measured with it.
    context.setDefaultTimeout(60_000);
    await context.addInitScript(
      `addEventListener('securitypolicyviolation', ({ violatedDirective, blockedURI, sourceFile }) =>
        console.error('The security policy forbids', violatedDirective, blockedURI, sourceFile))`,
    );
    // The session storage belongs to one page, the local storage to all of the context: a new page clears it once.
    await context.addInitScript(
      `if (location.protocol === 'http:' && sessionStorage.getItem('opened') === null) {
        sessionStorage.setItem('opened', 'yes');
        localStorage.clear();
      }`,
    );
    return context;
  }

  async signIn(page: Page, { user, password } = ADMIN): Promise<void> {
    // Exact: the page of the previous user, which remains for a moment after a sign-out, has a button with this name.
    await page.getByLabel('User', { exact: true }).fill(user);
    await page.getByLabel('Password').fill(password);
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.locator('#page h1').waitFor();
  }

  /**
   * Closes the pages that a test opened. If the test failed, prints their texts, since a time-out alone does not tell
   * what they showed.
   * @throws AssertionError if a page threw, or broke its security policy
   */
  async check(test: TestContext | SuiteContext | null = null): Promise<void> {
    const passed = test === null || !('passed' in test) || test.passed;
    if (this.#same !== null) this.#opened.delete(this.#same.context());
    if (this.#isSameUsed && this.#same !== null) {
      if (passed) await this.#leaveSame(this.#same);
      else this.#dropSame();
    }
    this.#isSameUsed = false;
    const shared = new Set(this.#shared.values());
    for (const context of this.#opened) {
      for (const page of context.pages().slice(shared.has(context) ? 1 : 0)) {
        if (!passed) console.error(page.url(), await page.locator('body').innerText());
        // A route that is still fetching would fail the test when its page is closed.
        await page.unrouteAll({ behavior: 'ignoreErrors' });
        if (shared.has(context)) await page.close();
      }
      if (!shared.has(context)) await context.close();
    }
    this.#opened.clear();
    assert.deepEqual(this.#browserErrors.splice(0), []);
  }

  /** Makes the next pages sign in again; to be called after a sign-out. */
  forgetSignIns(): void {
    this.#signedIn.clear();
    // `check` closes those that are no longer shared.
    for (const context of this.#shared.values()) this.#opened.add(context);
    this.#shared.clear();
    this.#dropSame();
  }

  async close(): Promise<void> {
    await this.#browser.close();
    this.#slow?.close();
    await this.#server.dispose();
  }

  /** Sends a request as a program of the administrator. */
  async request(method: string, path: string, init: RequestInit = {}): Promise<Response> {
    const login = Buffer.from(`${ADMIN.user}:${ADMIN.password}`).toString('base64');
    const headers = {
      authorization: `Basic ${login}`,
      ...(init.headers as Record<string, string> | undefined),
    };
    const response = await fetch(`${this.server.url}${path}`, { ...init, method, headers });
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`);
    return response;
  }

  async insert(
    ns: string,
    queue: string,
    body: string | Uint8Array<ArrayBuffer>,
    headers = {},
  ): Promise<void> {
    await this.request('PUT', `/q/${ns}/${encodeURIComponent(queue)}`, {
      body,
      headers: { 'content-type': 'application/json', ...headers },
    });
  }

  /** Takes the next element and makes a dead letter of it. */
  async fail(ns: string, queue: string, reason: string): Promise<void> {
    const taken = await this.request('GET', `/q/${ns}/${queue}?reserve=true&to=5000`);
    await taken.arrayBuffer();
    const { headers } = taken;
    const item = { id: headers.get('x-ks-id'), token: headers.get('x-ks-lease'), reason };
    await this.request('POST', `/q/${ns}/${queue}/settle`, {
      body: JSON.stringify({ bury: [item] }),
      headers: { 'content-type': 'application/json' },
    });
  }

  async size(ns: string, queue: string): Promise<number> {
    const response = await this.request('GET', `/q/${ns}/${queue}/status`);
    return ((await response.json()) as { totalSize: number }).totalSize;
  }

  /**
   * Violations on the page.
   * @param rules default to those of WCAG 2.2 AA and of good practice
   */
  async violations(page: Page, rules = RULES): Promise<string[]> {
    // axe stays loaded while only the part of the address after `#` changes.
    if (!(await page.evaluate('"axe" in window'))) await page.evaluate(await readFile(AXE, 'utf8'));
    const found = (await page.evaluate(
      `axe.run(document, { runOnly: ${JSON.stringify(rules)}, resultTypes: ['violations'] }).then(({ violations }) => violations.map(
        ({ id, nodes }) => id + ': ' + nodes.map(({ target, failureSummary }) => target.join(' ') + ' ' + failureSummary).join('; ')))`,
    )) as string[];
    return found;
  }
}
