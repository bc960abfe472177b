import assert from 'node:assert/strict';
import { it } from 'node:test';
import type { Locator, Page, Route } from 'playwright-core';
import { until } from '../support/until.ts';
import { ADMIN, type OpenedConsole, READER } from './opened.ts';
import { setHidden, stopTime } from './refreshing.ts';
import { SubPathProxy } from './sub-path-proxy.ts';

/** The response of a proxy if the server closed the connection without a response. */
const PROXY_PAGE = '<html><h1>502 Bad Gateway</h1></html>';

/** The console while the server cannot be reached, and after another tab has ended or replaced its session. */
export function connection(opened: () => OpenedConsole): void {
  it('shows the page as soon as the server says who is signed in, after this request has failed', async () => {
    const page = await opened().page('#/queues', { isFailing: true });
    await page.route('**/console/session', (route) => route.fulfill({ status: 502 }));
    await page.reload();
    await page.getByRole('alert').filter({ hasText: '502' }).waitFor();
    assert.equal(await page.getByRole('button', { name: 'Sign in' }).count(), 0);
    await page.unroute('**/console/session');
    await page.getByRole('heading', { name: 'Queues' }).waitFor();
  });

  it('keeps its page while a proxy responds that the server is unavailable', async () => {
    const page = await opened().page('#/queues', { isFailing: true });
    const sessionUrl = '**/console/session';
    await page.route('**/events?*', (route) => route.fulfill({ status: 502 }));
    await page.reload();
    await page.getByRole('button', { name: 'Refresh: Connection lost' }).waitFor();
    await page.route(sessionUrl, (route) => route.fulfill({ status: 502 }));
    await page.waitForResponse(sessionUrl);
    await page.unroute(sessionUrl);
    await page.unroute('**/events?*');
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
    await page.getByRole('heading', { name: 'Queues' }).waitFor();
  });

  it('repeats a failed read when the server is available again', async () => {
    await opened().insert('N', 'read-again', '1');
    const page = await opened().page('#/q/N/read-again', { isFailing: true });
    await page.locator('table.rows tbody a').first().click();
    await page.getByText('Why is it not delivered now?').waitFor();
    for (const path of ['**/events?*', '**/elements/*']) {
      await page.route(path, (route) => route.fulfill({ status: 502 }));
    }
    await page.reload();
    await page.getByRole('alert').filter({ hasText: '502' }).waitFor();
    await page.unrouteAll();
    await page.getByText('Why is it not delivered now?').waitFor();
  });

  it('loads the files of a page when the server is available again, after that has failed', async () => {
    const page = await opened().page('#/queues', { isFailing: true, isAlone: true });
    for (const path of ['**/events?*', '**/assets/users-*.js']) {
      await page.route(path, (route) => route.fulfill({ status: 502 }));
    }
    await page.reload();
    await page.getByRole('button', { name: 'Refresh: Connection lost' }).waitFor();
    await page.getByRole('link', { name: 'Users' }).click();
    const alert = page.getByRole('alert').filter({ hasText: 'This page could not be loaded' });
    await alert.waitFor();
    const failedAgain = page.waitForResponse('**/assets/users-*.js');
    await page.getByRole('button', { name: 'Try again' }).click();
    await failedAgain;
    await alert.waitFor();
    await page.unrouteAll();
    await page.getByRole('heading', { name: 'Rights of admin' }).waitFor();
  });

  it('acts with the session that another tab has started', async () => {
    await opened().insert('N', 'two-tabs', '1');
    const page = await pausedQueue('two-tabs');
    await page.context().request.post(`${opened().server.url}/console/session`, { data: ADMIN });
    opened().forgetSignIns();
    await page.getByRole('button', { name: 'Pause', exact: true }).click();
    await page.getByText('two-tabs is paused').waitFor();
    await page.getByRole('button', { name: 'Resume' }).click();
    await page.getByText('two-tabs runs again').waitFor();
  });

  it('changes nothing as another user who has signed in by another tab, and says who that is', async () => {
    await opened().insert('N', 'two-users', '1');
    const page = await pausedQueue('two-users');
    await page.context().request.post(`${opened().server.url}/console/session`, { data: READER });
    opened().forgetSignIns();
    await page.getByRole('button', { name: 'Pause', exact: true }).click();
    await page.getByText('Another tab has signed in as reader').waitFor();
    await page.getByText('You act as reader now, no longer as admin').waitFor();
    await page.getByRole('button', { name: 'User reader' }).waitFor();
    assert.equal(await page.getByRole('button', { name: 'Pause', exact: true }).count(), 0);
  });

  it('stays signed out although a late response says who was signed in', async () => {
    const page = await opened().page('#/operations', { isFailing: true });
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
    const { promise: asked, resolve: ask } = Promise.withResolvers<void>();
    const { promise: mayAnswer, resolve: answer } = Promise.withResolvers<void>();
    const { promise: isAnswered, resolve: answered } = Promise.withResolvers<void>();
    await page.route('**/console/session', async (route) => {
      if (route.request().method() !== 'GET') return route.continue();
      const response = await route.fetch();
      ask();
      await mayAnswer;
      await route.fulfill({ response });
      answered();
    });
    await setHidden(page, true);
    await page.getByRole('button', { name: 'Refresh: Resting' }).waitFor();
    await setHidden(page, false);
    await asked;
    await page.getByRole('button', { name: 'User admin' }).click();
    await page.getByRole('button', { name: 'Sign out' }).click();
    opened().forgetSignIns();
    await page.getByRole('button', { name: 'Sign in' }).waitFor();
    answer();
    await isAnswered;
    // A page that has aborted the request ignores its response. A response that is requested later arrives later.
    await page.evaluate("fetch('../livez').then((response) => response.text())");
    await page.evaluate('new Promise((done) => requestAnimationFrame(() => setTimeout(done)))');
    assert.equal(await page.getByRole('button', { name: 'User admin' }).count(), 0);
  });

  it('does not report a sign-out that did not reach the server', async () => {
    const page = await opened().page('#/', { isFailing: true, isAlone: true });
    await page.context().setOffline(true);
    await page.getByRole('button', { name: 'User admin' }).click();
    await page.getByRole('button', { name: 'Sign out' }).click();
    await page.getByText('You are still signed in').waitFor();
    await page.getByRole('heading', { name: 'Overview' }).waitFor();
  });

  it('does not report a sign-out that a proxy answered instead of the server', async () => {
    const page = await opened().page('#/', { isFailing: true });
    await page.route('**/console/session', (route) =>
      route.request().method() === 'DELETE'
        ? route.fulfill({ status: 502, body: PROXY_PAGE })
        : route.continue(),
    );
    await page.getByRole('button', { name: 'User admin' }).click();
    await page.getByRole('button', { name: 'Sign out' }).click();
    await page.getByText('You are still signed in').waitFor();
    await page.getByRole('heading', { name: 'Overview' }).waitFor();
  });

  it('repeats a read that a proxy answered with a page of its own', async () => {
    await opened().insert('N', 'not-answered', '1');
    const page = await opened().page('#/q/N/not-answered', { isFailing: true });
    await page.route('**/events?*', (route) => route.fulfill({ status: 502 }));
    await page.route('**/elements?*', (route) =>
      route.fulfill({ contentType: 'text/html', body: '<p>Sign in' }),
    );
    await page.reload();
    await page.getByRole('alert').filter({ hasText: 'The response is not from the server' }).waitFor();
    await page.unrouteAll();
    await page.getByText('The only match').waitFor();
  });

  it('repeats a read whose response broke off when the server is available again', async () => {
    await opened().insert('N', 'broken-off', '1');
    await behindProxy('#/q/N/broken-off', async (page, proxy) => {
      await page.locator('table.rows tbody a').first().click();
      await page.getByText('Why is it not delivered now?').waitFor();
      proxy.breaks = (path) => path.includes('/broken-off/elements/');
      await page.route('**/events?*', (route) => route.fulfill({ status: 502 }));
      await page.reload();
      await page.getByRole('button', { name: 'Refresh: Connection lost' }).waitFor();
      await page.getByRole('alert').filter({ hasText: 'The server did not respond' }).waitFor();
      proxy.breaks = () => false;
      await page.unrouteAll();
      await page.getByText('Why is it not delivered now?').waitFor();
    });
  });

  it('neither starts an operation twice nor loses track of it when responses about it break off', async () => {
    await opened().insert('N', 'half-answered', '1');
    await behindProxy('#/q/N/half-answered', async (page, proxy) => {
      await page.getByRole('button', { name: 'Copy …' }).click();
      const dialog = page.getByRole('dialog');
      await page.getByLabel('To queue').fill('half-answered-copy');
      const confirm = dialog.getByRole('button', {
        name: 'Copy 1 element of half-answered',
        disabled: false,
      });
      await confirm.waitFor();
      proxy.breaks = (path) => path === '/operations';
      await confirm.click();
      await dialog.getByText('The response was lost: the operation may be running.').waitFor();
      assert.equal(await confirm.count(), 0);
      proxy.breaks = () => false;
      await dialog.getByRole('button', { name: 'Try again' }).click();
      await confirm.waitFor();
      proxy.breaks = (path) => path.startsWith('/operations/');
      await confirm.click();
      await dialog.getByRole('alert').filter({ hasText: 'The server did not respond' }).waitFor();
      proxy.breaks = () => false;
      await page.getByText('1 element of half-answered copied').waitFor();
      assert.equal(await dialog.getByRole('alert').count(), 0);
    });
  });

  it('says that an operation whose start a proxy answered may be running, and shows its effect', async () => {
    await opened().insert('N', 'behind-proxy', '1');
    const page = await opened().page('#/q/N/behind-proxy', { isFailing: true });
    await page.getByRole('button', { name: 'Delete …' }).click();
    const dialog = page.getByRole('dialog');
    const confirm = dialog.getByRole('button', {
      name: 'Delete 1 element of behind-proxy',
      disabled: false,
    });
    await confirm.waitFor();
    await page.route('**/operations', async (route) => {
      await route.fetch();
      await route.fulfill({ status: 502, body: PROXY_PAGE });
    });
    await confirm.click();
    await dialog.getByText('The response was lost: the operation may be running.').waitFor();
    assert.equal(await confirm.count(), 0);
    await until(async () => (await opened().size('N', 'behind-proxy')) === 0);
    await dialog.getByRole('button', { name: 'Cancel' }).click();
    await page.getByText('The queue is empty').waitFor();
  });

  it('keeps the dialog of an operation open until the server has said whether it runs', async () => {
    await opened().insert('jobs', 'starting', '1');
    await opened().fail('jobs', 'starting', 'smtp 454');
    const page = await opened().page('#/dead-letters');
    await page.getByRole('button', { name: 'Redrive smtp 454' }).click();
    const dialog = page.getByRole('dialog');
    const confirm = { name: 'Redrive 1 element of __deadletter__' };
    await dialog.getByRole('button', { ...confirm, disabled: false }).waitFor();
    const { promise: asked, resolve: ask } = Promise.withResolvers<void>();
    const { promise: mayStart, resolve: start } = Promise.withResolvers<void>();
    await page.route('**/operations', async (route) => {
      ask();
      await mayStart;
      await route.continue();
    });
    await dialog.getByRole('button', confirm).click();
    await asked;
    await dialog.getByRole('button', { name: 'Cancel', disabled: true }).waitFor();
    assert.equal(await dialog.getByLabel('Became dead letters').isDisabled(), true);
    // Browsers let Escape close it the second time.
    await page.keyboard.press('Escape');
    await page.keyboard.press('Escape');
    await dialog.getByRole('button', { name: 'Close', exact: true }).click();
    start();
    await dialog.getByText('1 element of __deadletter__ redriven').waitFor();
    await opened().request('DELETE', '/q/jobs/starting?force=1');
  });

  it('ends a count on the server when its dialog is closed or counts again', async () => {
    await opened().request('POST', '/q/N/long-count/elements', {
      headers: { 'content-type': 'application/x-ndjson' },
      body: '{"text":"x"}\n'.repeat(1_100),
    });
    const page = await opened().page('#/q/N/long-count', { isFailing: true });
    // Its second page waits for a quarter of an hour.
    const slowly = (route: Route): string => JSON.stringify({ ...route.request().postDataJSON(), rate: 1 });
    await page.route('**/operations', (route) => route.continue({ postData: slowly(route) }));
    await page.route('**/operations/*', (route) =>
      route.request().method() === 'GET' ? route.fulfill({ status: 503 }) : route.continue(),
    );
    /** The states of the counts, the latest first. */
    const states = async (): Promise<string> => {
      const response = await opened().request('GET', '/operations?queue=long-count');
      return ((await response.json()) as { state: string }[]).map(({ state }) => state).join();
    };
    await page.getByRole('button', { name: 'Delete …' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Try again' }).click();
    await until(async () => (await states()) === 'running,cancelled');
    await page.unroute('**/operations/*');
    await page.getByText('1,000 elements match so far').waitFor();
    await page.getByRole('button', { name: 'Cancel', exact: true }).click();
    await until(async () => (await states()) === 'cancelled,cancelled');
    // Also if the dialog is closed before the server has responded.
    await page.unroute('**/operations');
    const { promise: mayAnswer, resolve: answer } = Promise.withResolvers<void>();
    await page.route('**/operations', async (route) => {
      const response = await route.fetch({ postData: slowly(route) });
      await mayAnswer;
      await route.fulfill({ response });
    });
    await page.getByRole('button', { name: 'Delete …' }).click();
    await page.getByRole('button', { name: 'Cancel', exact: true }).click();
    await until(async () => (await states()) === 'running,cancelled,cancelled');
    answer();
    await until(async () => (await states()) === 'cancelled,cancelled,cancelled');
    await opened().request('DELETE', '/q/N/long-count?force=1');
  });

  it('does not show the errors of one user to another who signs in', async () => {
    await opened().insert('N', 'error-of-one', '1');
    const page = await opened().page('#/q/N/error-of-one', { isFailing: true });
    await page.route('**/pause', (route) =>
      route.fulfill({ status: 503, json: { code: 'storage-unavailable', message: 'The engine is away.' } }),
    );
    await page.getByRole('button', { name: 'Pause', exact: true }).click();
    await page.getByText('The engine is away.').waitFor();
    await page.getByRole('button', { name: 'User admin' }).click();
    await page.getByRole('button', { name: 'Sign out' }).click();
    opened().forgetSignIns();
    await opened().signIn(page, READER);
    await page.getByRole('button', { name: 'User reader' }).waitFor();
    assert.equal(await page.getByText('The engine is away.').count(), 0);
  });

  it('says why a purge cannot count its elements, and can try again', async () => {
    await opened().insert('N', 'uncounted', '1');
    const page = await opened().page('#/q/N/uncounted', { isFailing: true });
    for (const path of ['**/events?*', '**/uncounted/status']) {
      await page.route(path, (route) => route.fulfill({ status: 502 }));
    }
    await page.reload();
    await page.getByRole('button', { name: 'Refresh: Connection lost' }).waitFor();
    await page.getByRole('button', { name: 'More of uncounted' }).click();
    await page.getByRole('button', { name: 'Purge …' }).click();
    const dialog = page.getByRole('dialog');
    await dialog.getByRole('alert').filter({ hasText: '502' }).waitFor();
    await page.unroute('**/uncounted/status');
    await dialog.getByRole('button', { name: 'Try again' }).click();
    await dialog.getByRole('button', { name: 'Remove 1 element of uncounted', disabled: false }).click();
    await page.getByText('1 element of uncounted removed').waitFor();
  });

  it('waits for the result of a purge that takes longer than a connection may be silent', async () => {
    await opened().insert('N', 'long-purge', '1');
    const page = await opened().page('#/q/N/long-purge', { isAlone: true });
    await page.clock.install();
    const { promise: asked, resolve: ask } = Promise.withResolvers<void>();
    const { promise: isDone, resolve: finish } = Promise.withResolvers<void>();
    await page.route('**/long-purge/elements', async (route) => {
      ask();
      await isDone;
      await route.continue();
    });
    await page.getByRole('button', { name: 'More of long-purge' }).click();
    await page.getByRole('button', { name: 'Purge …' }).click();
    await page.getByRole('button', { name: 'Remove 1 element of long-purge', disabled: false }).click();
    await asked;
    await page.clock.runFor('00:50');
    finish();
    await page.getByText('1 element of long-purge removed').waitFor();
  });

  it('continues to show an operation after the server was unavailable for a while', async () => {
    await opened().insert('N', 'interrupted', '1');
    const page = await opened().page('#/q/N/interrupted', { isFailing: true });
    await page.getByRole('button', { name: 'Delete …' }).click();
    const confirm = page.getByRole('button', { name: 'Delete 1 element of interrupted', disabled: false });
    await confirm.waitFor();
    await page.route('**/operations/*', (route) => route.fulfill({ status: 503 }));
    await confirm.click();
    await page.getByRole('dialog').getByRole('alert').filter({ hasText: '503' }).waitFor();
    await page.unrouteAll();
    await page.getByText('1 element of interrupted deleted').waitFor();
    assert.equal(await page.getByRole('dialog').getByRole('alert').count(), 0);
  });

  it('keeps typed text for the same user when the session ends', async () => {
    await opened().insert('N', 'unsaved', '1');
    const page = await opened().page('#/q/N/unsaved', { isFailing: true });
    // Wait for the list: if it could not be read because the session ended, it would be read after the sign-in and
    // already show the new element.
    await page.getByText('The only match').waitFor();
    await page.getByRole('button', { name: 'Insert' }).click();
    await page.getByLabel('Body').fill('"long in the making"');
    await endSessions();
    await pressWithoutSession(page, page.getByRole('dialog').getByRole('button', { name: 'Insert' }));
    assert.deepEqual(await opened().violations(page), []);
    await page.keyboard.press('Escape');
    await page.keyboard.press('Escape');
    await page.getByLabel('Password').fill(ADMIN.password);
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByRole('button', { name: 'Sign in' }).waitFor({ state: 'detached' });
    assert.equal(await page.getByLabel('Body').inputValue(), '"long in the making"');
    await page.getByRole('dialog').getByRole('button', { name: 'Insert' }).click();
    await page.getByText('An element was inserted into unsaved').waitFor();
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
    await page.getByRole('button', { name: '1 new: show' }).click();
    await page.getByText('All 2 that match').waitFor();
  });

  it('uses a session that another tab has started since its own ended', async () => {
    const page = await opened().page('#/q/N/none', { isFailing: true });
    await endSessions();
    await pressWithoutSession(page, page.getByRole('button', { name: 'Pause', exact: true }));
    await page.context().request.post(`${opened().server.url}/console/session`, { data: ADMIN });
    await page.evaluate(`document.dispatchEvent(new Event('visibilitychange'))`);
    await page.getByRole('button', { name: 'Sign in' }).waitFor({ state: 'detached' });
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
    // A sign-out is not the end of the previous session.
    await page.getByRole('button', { name: 'User admin' }).click();
    await page.getByRole('button', { name: 'Sign out' }).click();
    opened().forgetSignIns();
    await page.getByRole('heading', { name: 'Sign in to' }).waitFor();
    assert.equal(await page.getByText('Your session has ended').count(), 0);
  });

  it('does not mistake a late response about the end of the previous session for the end of the current one', async () => {
    await opened().insert('N', 'late-answer', '1');
    const page = await opened().page('#/q/N/late-answer', { isFailing: true });
    await page.getByText('The only match').waitFor();
    const { promise: mayAnswer, resolve: answer } = Promise.withResolvers<void>();
    const late = { status: 401, json: { code: 'unauthorized', message: 'This came late.' } };
    await page.route('**/elements?*', (route) => mayAnswer.then(() => route.fulfill(late)), { times: 1 });
    const asked = page.waitForRequest('**/elements?*');
    await page.getByRole('button', { name: 'Reload' }).click();
    await asked;
    await endSessionAndSignIn(page);
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
    answer();
    await page.getByText('This came late.').waitFor();
    assert.equal(await page.getByRole('button', { name: 'Sign in' }).count(), 0);
  });

  it('does not mistake a late response to an import in the previous session for the end of the current one', async () => {
    const page = await opened().page('#/q/N/late-import', { isFailing: true });
    await page.getByRole('button', { name: 'More of late-import' }).click();
    await page.getByRole('button', { name: 'Import …' }).click();
    const dialog = page.getByRole('dialog', { name: 'Import into late-import' });
    const file = { name: 'q.ndjson', mimeType: 'text/plain', buffer: Buffer.from('{}') };
    await dialog.getByLabel('File').setInputFiles(file);
    const { promise: mayAnswer, resolve: answer } = Promise.withResolvers<void>();
    const late = { status: 401, json: { code: 'unauthorized', message: 'This came late.' } };
    await page.route('**/import', (route) => mayAnswer.then(() => route.fulfill(late)));
    const asked = page.waitForRequest('**/import');
    await dialog.getByRole('button', { name: 'Import into late-import' }).click();
    await asked;
    await endSessionAndSignIn(page);
    answer();
    await page.getByText('This came late.').waitFor();
    assert.equal(await page.getByRole('button', { name: 'Sign in' }).count(), 0);
  });

  it('does not show typed text to another user who signs in', async () => {
    await opened().insert('N', 'not-yours', '1');
    const page = await opened().page('#/q/N/not-yours', { isFailing: true });
    await page.getByRole('button', { name: 'Insert' }).click();
    await page.getByLabel('Body').fill('"not yours"');
    await endSessions();
    await pressWithoutSession(page, page.getByRole('dialog').getByRole('button', { name: 'Insert' }));
    await page.getByLabel('User', { exact: true }).fill(READER.user);
    await page.getByLabel('Password').fill(READER.password);
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByRole('button', { name: 'User reader' }).waitFor();
    await page.locator('table.rows tbody a').first().waitFor();
    assert.equal(await page.getByRole('dialog').count(), 0);
  });

  it('does not show the data of one user to another who signs in, even while refreshing is paused', async () => {
    await opened().insert('events', 'not-for-all', '1');
    await opened().request('POST', '/q/events/not-for-all/pause');
    // A paused page reads once the data that the server has sent to others by then.
    const live = await opened().page('#/');
    await live.getByRole('link', { name: 'not-for-all' }).waitFor();
    const page = await pausedPage('#/');
    await page.getByRole('link', { name: 'not-for-all' }).waitFor();
    await page.getByRole('button', { name: 'User admin' }).click();
    await page.getByRole('button', { name: 'Sign out' }).click();
    opened().forgetSignIns();
    await opened().signIn(page, READER);
    await page.getByRole('heading', { name: 'Needs attention' }).waitFor();
    assert.equal(await page.getByRole('link', { name: 'not-for-all' }).count(), 0);
    await opened().request('DELETE', '/q/events/not-for-all?force=1');
  });

  it('offers only what the current rights allow, after it has reconnected and after a request was forbidden', async () => {
    await opened().insert('N', 'rights', '1');
    const page = await opened().page('#/q/N/rights', { isFailing: true });
    const pause = page.getByRole('button', { name: 'Pause', exact: true });
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
    const setRights = async (rights: readonly string[]): Promise<void> => {
      await page.route('**/console/session', async (route) => {
        const response = await route.fetch();
        const record = (await response.json()) as { rights: Record<string, unknown> };
        await route.fulfill({ response, json: { ...record, rights: { ...record.rights, N: rights } } });
      });
    };
    await setRights(['read', 'browse']);
    await setHidden(page, true);
    await page.getByRole('button', { name: 'Refresh: Resting' }).waitFor();
    await setHidden(page, false);
    await pause.waitFor({ state: 'detached' });
    await setRights(['read', 'browse', 'manage']);
    await setHidden(page, true);
    await page.getByRole('button', { name: 'Refresh: Resting' }).waitFor();
    await setHidden(page, false);
    await pause.waitFor();
    await setRights(['read', 'browse']);
    await page.route('**/pause', (route) =>
      route.fulfill({ status: 403, json: { code: 'forbidden', message: 'You may not manage N.' } }),
    );
    await pause.click();
    await page.getByText('You may not manage N.').waitFor();
    await pause.waitFor({ state: 'detached' });
  });

  it('stores an element once if it is inserted again after a lost response', async () => {
    await opened().insert('N', 'lost', '1');
    const page = await opened().page('#/q/N/lost', { isFailing: true });
    await page.getByRole('button', { name: 'Insert' }).click();
    const dialog = page.getByRole('dialog');
    await page.getByLabel('Body').fill('"again"');
    await page.route('**/q/N/lost', loseResponse);
    await dialog.getByRole('button', { name: 'Insert' }).click();
    await dialog.getByText('the element is stored only once.').waitFor();
    await page.unrouteAll();
    await dialog.getByRole('button', { name: 'Insert' }).click();
    await page.getByText('An element was inserted into lost').waitFor();
    assert.equal(await opened().size('N', 'lost'), 2);
  });

  it('counts again before an operation with a lost response is started again', async () => {
    await opened().insert('N', 'unsure', '1');
    const page = await opened().page('#/q/N/unsure', { isFailing: true });
    await page.getByRole('button', { name: 'Copy …' }).click();
    const dialog = page.getByRole('dialog');
    await page.getByLabel('To queue').fill('unsure-copy');
    const confirm = dialog.getByRole('button', {
      name: 'Copy 1 element of unsure to unsure-copy',
      disabled: false,
    });
    await confirm.waitFor();
    await page.route('**/operations', loseResponse);
    await confirm.click();
    await dialog.getByText('The response was lost: the operation may be running.').waitFor();
    assert.equal(await confirm.count(), 0);
    await page.unrouteAll();
    await dialog.getByRole('button', { name: 'Try again' }).click();
    await confirm.waitFor();
  });

  it('says how many queues were paused if some failed, and keeps the failed ones selected', async () => {
    for (const queue of ['some-a', 'some-b', 'some-c']) await opened().insert('N', queue, '1');
    const page = await opened().page('#/queues?filter=some-', { isFailing: true });
    // As on a busy server, the list has the queues earlier than the events do.
    await page.route(/\/events\?/, (route) =>
      route.fulfill({
        contentType: 'text/event-stream',
        body: 'event: start\ndata: {"full":true}\n\nevent: complete\ndata: {}\n\n',
      }),
    );
    await page.reload();
    // If the list is read before the server has counted all queues, it is read again when the page connects to the
    // events.
    await page.locator('table.rows tbody tr').nth(2).waitFor();
    await page.getByLabel('Select all that are listed').check();
    await page.route('**/q/N/some-b/pause', (route) =>
      route.fulfill({ status: 503, json: { code: 'storage-unavailable', message: 'The engine is away.' } }),
    );
    await page.getByRole('button', { name: 'Pause', exact: true }).click();
    await page
      .getByText('2 queues paused; 1 other is unchanged and still selected: The engine is away.')
      .waitFor();
    await page.getByText('1 queue selected').waitFor();
    await page.unrouteAll();
    await page.getByRole('button', { name: 'Pause', exact: true }).click();
    await page.getByText('1 queue paused').waitFor();
  });

  it('does not create a selected queue again that someone else has deleted', async () => {
    for (const queue of ['chosen-a', 'chosen-b']) await opened().insert('N', queue, '1');
    const page = await opened().page('#/queues?filter=chosen-');
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
    await page.locator('table.rows tbody tr').nth(1).waitFor();
    await page.getByLabel('Select all that are listed').check();
    await page.getByText('2 queues selected').waitFor();
    await opened().request('DELETE', '/q/N/chosen-a?force=1');
    await page.getByText('1 queue selected').waitFor();
    await page.getByRole('button', { name: 'Pause', exact: true }).click();
    await page.getByText('1 queue paused').waitFor();
    const status = await opened().request('GET', '/q/N/chosen-a/status');
    assert.equal(((await status.json()) as { paused: boolean }).paused, false);
    await opened().request('DELETE', '/q/N/chosen-b?force=1');
  });

  it('drops a selected queue that was deleted before the events have named it', async () => {
    await opened().insert('N', 'ghost-a', '1');
    const page = await opened().page('#/queues?filter=ghost-', { isAlone: true });
    await page.clock.install();
    let isListed = true;
    await page.route('**/queues?*', async (route) => {
      const response = await route.fetch();
      const found = (await response.json()) as { queues: object[] };
      const deleted = { ...found.queues[0], queue: 'ghost-b' };
      await route.fulfill({ json: { ...found, queues: [...found.queues, ...(isListed ? [deleted] : [])] } });
    });
    await page.reload();
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
    await page.locator('table.rows tbody tr').nth(1).waitFor();
    await page.getByLabel('Select all that are listed').check();
    await page.getByText('2 queues selected').waitFor();
    isListed = false;
    await page.clock.fastForward(10_000);
    await page.getByText('1 queue selected').waitFor();
    assert.deepEqual(await page.locator('table.rows tbody a').allTextContents(), ['ghost-a']);
    await opened().request('DELETE', '/q/N/ghost-a?force=1');
  });

  it('imports with the session that another tab has started', async () => {
    await opened().insert('N', 'two-imports', '1');
    const lines = Buffer.from(await (await opened().request('GET', '/q/N/two-imports/export')).arrayBuffer());
    const page = await pausedQueue('two-imports-copy');
    await page.context().request.post(`${opened().server.url}/console/session`, { data: ADMIN });
    opened().forgetSignIns();
    await page.getByRole('button', { name: 'More of two-imports-copy' }).click();
    await page.getByRole('button', { name: 'Import …' }).click();
    await page.getByLabel('File').setInputFiles({ name: 'q.ndjson', mimeType: 'text/plain', buffer: lines });
    await page.getByRole('dialog').getByRole('button', { name: 'Import into two-imports-copy' }).click();
    await page.getByText('1 element imported').waitFor();
  });

  it('returns the focus to the field that had it when the session ended', async () => {
    await opened().insert('N', 'focus', '1');
    const page = await opened().page('#/q/N/focus', { isFailing: true });
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
    await page.getByRole('button', { name: 'Insert' }).click();
    await page.getByLabel('Body').fill('"typed"');
    await endSessions();
    await page.getByText('Your session has ended').waitFor();
    await page.getByLabel('Password').fill(ADMIN.password);
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByRole('button', { name: 'Sign in' }).waitFor({ state: 'detached' });
    await page.locator('textarea[name="text"]:focus').waitFor();
    await page.keyboard.type('!');
    assert.equal(await page.getByLabel('Body').inputValue(), '"typed"!');
  });

  it('shows a full picture completely if its event stream broke off in the middle and was continued', async () => {
    const page = await opened().page('#/operations');
    // Otherwise the page before the reload may take one of the parts.
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
    const queue = (name: string): string => {
      const stats = { put: 1, get: 0, reserve: 0, commit: 0, rollback: 0, deadletter: 0 };
      const sizes = { size: 1, schedSize: 0, resvSize: 0, totalSize: 1, next_mature_t: null, paused: false };
      return JSON.stringify([{ ns: 'N', queue: name, ...sizes, stats }]);
    };
    const parts = [
      `retry: 10\nevent: start\ndata: {"full":true}\n\nevent: queues\ndata: ${queue('a')}\nid: x-1\n\n`,
      `event: start\ndata: {"full":false}\n\nevent: queues\ndata: ${queue('b')}\nid: x-2\n\nevent: complete\ndata: {}\n\n`,
    ];
    await page.route('**/events?*', async (route) => {
      const body = parts.shift();
      if (body !== undefined) await route.fulfill({ body, contentType: 'text/event-stream' });
    });
    await page.reload();
    await page.getByRole('link', { name: 'Queues 2', exact: true }).waitFor();
  });

  it('shows an engine as unavailable although its disk was nearly full before', async () => {
    const page = await opened().page('#/users');
    const since = new Date().toISOString();
    const ofEngine = ['disk-nearly-full', 'engine-unavailable'].map((alarm) => {
      return { alarm, engine: 'sqlite:N.db', namespaces: ['N'], detail: 'away', since };
    });
    const ofQueues = Array.from({ length: 30 }, (_, i) => {
      return { alarm: 'dead-letters-grew', ns: 'N', queue: `dead-${i}`, totalSize: 1, since };
    });
    const alarms = [...ofQueues, ...ofEngine];
    const body = `event: start\ndata: {"full":true}\n\nevent: alarms\ndata: ${JSON.stringify(alarms)}\n\nevent: complete\ndata: {}\n\n`;
    await page.route('**/events?*', (route) => route.fulfill({ body, contentType: 'text/event-stream' }));
    await page.goto(`${opened().server.url}/console/#/`);
    await page.reload();
    const namespaces = page.getByRole('region', { name: 'Namespaces' });
    const link = page.getByRole('link', { name: 'N', exact: true });
    const row = namespaces.locator('tbody tr').filter({ has: link });
    await row.getByText('Unavailable').waitFor();
    // The alarms of engines come first, and of the others only some are shown.
    const shown = page.getByRole('region', { name: 'Alarms' });
    await shown.getByText('Engine sqlite:N.db is unavailable').waitFor();
    await shown.getByText('and 12 more').waitFor();
  });

  it('counts the dead letters of an engine that was unavailable when the overview was opened', async () => {
    const page = await opened().page('#/users');
    const json = { queues: [], complete: false, unavailable: ['N'] };
    await page.route('**/dead-letters', (route) => route.fulfill({ json }));
    await page.getByRole('link', { name: 'Overview' }).click();
    const totals = page.getByRole('region', { name: 'Totals' });
    await totals.getByText('without N').waitFor();
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
    await page.unroute('**/dead-letters');
    await setHidden(page, true);
    await page.getByRole('button', { name: 'Refresh: Resting' }).waitFor();
    await setHidden(page, false);
    await totals.getByText('all namespaces').waitFor();
  });

  it('keeps the session alive on a page that only receives events', async () => {
    const page = await opened().page('#/operations');
    await page.route('**/console/session', async (route) => {
      const response = await route.fetch();
      const record = (await response.json()) as object;
      const expiresAt = new Date(Date.now() + 4_000).toISOString();
      await route.fulfill({ response, json: { ...record, expiresAt } });
    });
    await page.reload();
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
    for (let uses = 0; uses < 2; uses += 1) await page.waitForRequest('**/console/session');
  });

  it('reconnects to the server after the computer has slept', async () => {
    const page = await opened().page('#/queues', { isAlone: true });
    await page.clock.install();
    await page.reload();
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
    await untilFollowed(page, () => page.clock.fastForward('10:00'));
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
  });

  it('reconnects after the computer has slept, even if a response corrects the time before the sleep is noticed', async () => {
    const page = await opened().page('#/queues', { isAlone: true });
    await page.clock.install();
    await page.reload();
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
    let slept = await stopTime(page);
    await untilFollowed(page, async () => {
      slept += 600_000;
      // No timer of the page is due before the response is there.
      await page.clock.setSystemTime(slept);
      const asked = page.waitForRequest('**/queues?*');
      await page.getByRole('button', { name: 'Sort again' }).click();
      const request = await asked;
      // The page may abort it after the response has begun. Playwright's `Response.finished` never settles then.
      await until(() => request.timing().responseEnd >= 0 || request.failure() !== null);
      await page.clock.runFor(2_000);
    });
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
  });

  it('reconnects to the server when nothing arrives any more, although the connection has no error', async () => {
    const page = await opened().page('#/operations', { isAlone: true });
    await page.clock.install();
    await page.reload();
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
    // Only the clock of the page advances, so that the server sends next to nothing in this time.
    await untilFollowed(page, () => page.clock.runFor('01:00'));
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
  });

  it('reads the data of a page again even if a response never comes', async () => {
    const page = await opened().page('#/', { isAlone: true });
    await page.clock.install();
    await page.reload();
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
    await stopTime(page);
    let reads = 0;
    await page.route('**/history', () => {
      reads += 1;
    });
    await until(async () => {
      await page.clock.fastForward(15_000);
      return reads > 0;
    });
    await until(async () => {
      await page.clock.fastForward(15_000);
      return reads > 1;
    });
  });

  it('reads the data of a page again even if a response stops in the middle', async () => {
    await behindProxy('#/', async (page, proxy) => {
      await page.clock.install();
      await page.reload();
      await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
      await stopTime(page);
      let reads = 0;
      proxy.isSilent = true;
      proxy.breaks = (path) => {
        if (path === '/history') reads += 1;
        return path === '/history';
      };
      for (const count of [1, 2]) {
        await until(async () => {
          await page.clock.fastForward(15_000);
          return reads >= count;
        });
      }
    });
  });

  it('reconnects even if a connection is silent before it is live, and after one was lost', async () => {
    const page = await opened().page('#/operations', { isAlone: true });
    await page.clock.install();
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
    let attempts = 0;
    let isBreaking = false;
    await page.route('**/events?*', async (route) => {
      attempts += 1;
      if (!isBreaking) return;
      isBreaking = false;
      await route.fulfill({ body: 'retry: 10\n\n', contentType: 'text/event-stream' });
    });
    // On the clock of the page, nothing arrives for longer than a connection may be silent.
    const passSilence = async (): Promise<void> => {
      const attempted = page.waitForRequest('**/events?*');
      await page.clock.runFor('00:50');
      await attempted;
    };
    await page.reload();
    await page.getByRole('button', { name: 'Refresh: Connecting' }).waitFor();
    await until(() => attempts > 0);
    isBreaking = true;
    await passSilence();
    await page.getByRole('button', { name: 'Refresh: Connection lost' }).waitFor();
    // The browser itself has reconnected.
    await until(() => attempts > 2);
    await passSilence();
  });

  async function behindProxy(
    where: string,
    test: (page: Page, proxy: SubPathProxy) => Promise<void>,
  ): Promise<void> {
    const proxy = await SubPathProxy.start(opened().server.url, '/behind');
    try {
      await test(await opened().page(where, { behind: proxy.url, isFailing: true }), proxy);
      // Check before the proxy closes: after that the page would report the end of its event stream.
      await opened().check();
    } finally {
      await proxy.close();
    }
  }

  /** The server executes the request, and the page gets no response. */
  async function loseResponse(route: Route): Promise<void> {
    if (route.request().postData()?.includes('"dryRun":true') === true) return route.continue();
    await route.fetch();
    await route.abort();
  }

  /**
   * Passes time until the page opens a new event stream. If the server sends something in between, the page keeps the
   * old one, and time passes once more.
   */
  async function untilFollowed(page: Page, passTime: () => Promise<void>): Promise<void> {
    let isFollowed = false;
    page.on('request', (request) => {
      if (new URL(request.url()).pathname === '/events') isFollowed = true;
    });
    await until(async () => {
      await passTime();
      return isFollowed;
    });
  }

  /**
   * Presses a button whose request is answered with 401. The page may have learned from another request that the
   * session has ended, and then show its sign-in form above the button: so the click is dispatched to the button
   * itself.
   */
  async function pressWithoutSession(page: Page, button: Locator): Promise<void> {
    const answered = page.waitForResponse(
      (response) => response.status() === 401 && response.request().method() !== 'GET',
    );
    await button.dispatchEvent('click');
    await answered;
    await page.getByText('Your session has ended').waitFor();
  }

  async function endSessions(): Promise<void> {
    await opened().request('DELETE', `/console/sessions?user=${ADMIN.user}`);
    opened().forgetSignIns();
  }

  /** On the page of a queue: its session ends, and the administrator signs in again. */
  async function endSessionAndSignIn(page: Page): Promise<void> {
    await endSessions();
    await pressWithoutSession(page, page.getByRole('button', { name: 'Pause', exact: true }));
    await page.getByLabel('Password').fill(ADMIN.password);
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByRole('button', { name: 'Sign in' }).waitFor({ state: 'detached' });
  }

  /** A page with refreshing paused: it reads nothing by itself, and has no event stream that could end. */
  async function pausedPage(where: string): Promise<Page> {
    const page = await opened().page(where, { isFailing: true });
    await page.evaluate(`localStorage.setItem('quayside.refresh', '"paused"')`);
    await page.reload();
    await page.getByRole('button', { name: 'Refresh: Paused' }).waitFor();
    return page;
  }

  /**
   * The page of a queue with refreshing paused, when it has read everything: a later request of the previous session
   * would be answered with 401.
   */
  async function pausedQueue(queue: string): Promise<Page> {
    const page = await pausedPage(`#/q/N/${queue}`);
    await page.locator('.facts').getByText('sqlite').waitFor();
    await page.locator('.charts .plot').first().waitFor();
    await page.getByText(/that match$|^The only match$|^The queue is empty$/).waitFor();
    return page;
  }
}
