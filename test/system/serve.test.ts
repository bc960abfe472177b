import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { after, before, describe, it, type TestContext } from 'node:test';
import { serve } from '../../src/app/serve.ts';
import { Server } from '../../src/app/server.ts';
import { type LoadedConfig, loadConfig } from '../../src/config/load.ts';
import { QueueClient } from '../support/http-client.ts';
import { until } from '../support/until.ts';

/** The reason of `failedStart`. */
const NO_ADDRESS = /http\.host: cannot listen on 192\.0\.2\.1/;

describe('A serving process', () => {
  let folder: string;
  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'quayside-serve-'));
  });
  after(() => rm(folder, { recursive: true }));

  /** Loads a configuration with one user. */
  function configured(user: string, more: Record<string, string> = {}): Promise<LoadedConfig> {
    const env = {
      QUAYSIDE_HTTP__PORT: '0',
      QUAYSIDE_HTTP__USERS: JSON.stringify({ [user]: 'password' }),
      QUAYSIDE_NAMESPACES: '{"N": {"url": "sqlite::memory:"}}',
      QUAYSIDE_LOG__LEVEL: 'error',
      ...more,
    };
    return loadConfig({ file: null, env, cwd: folder });
  }

  /** Starts serving until SIGTERM. SIGHUP calls `load`. */
  async function started(load: () => Promise<LoadedConfig>) {
    const output = new PassThrough();
    const loaded = await configured('ann');
    const ended = serve({ loaded, load, version: '0.0.0', output, exitNow: () => {} });
    const url = async (): Promise<string> => {
      let text = '';
      await until(() => {
        text += output.read() ?? '';
        return text.includes('\n');
      });
      return /listens on (\S+)/.exec(text)?.[1] ?? '';
    };
    return { url, ended };
  }

  const signal = (name: 'SIGTERM' | 'SIGHUP'): boolean => process.emit(name, name);

  async function mayLogIn(url: string, user: string): Promise<boolean> {
    const client = new QueueClient({ url, credentials: `${user}:password` });
    const { status } = await client.status('N', 'q');
    client.close();
    return status === 200;
  }

  /** Lets servers stop, but reject as if they had failed to. */
  function failStops({ mock }: TestContext): void {
    const { stop } = Server.prototype;
    mock.method(Server.prototype, 'stop', async function (this: Server) {
      await stop.call(this);
      throw new Error('planted');
    });
  }

  it('reloads the configuration once per SIGHUP, one reload at a time', async () => {
    const first = Promise.withResolvers<LoadedConfig>();
    let loads = 0;
    const { url, ended } = await started(() => {
      loads += 1;
      return loads === 1 ? first.promise : configured('last');
    });
    const at = await url();
    signal('SIGHUP');
    signal('SIGHUP');
    await until(() => loads > 0);
    first.resolve(await configured('first'));
    await until(() => mayLogIn(at, 'last'));
    assert.equal(loads, 2);
    assert.equal(await mayLogIn(at, 'first'), false);
    signal('SIGTERM');
    assert.equal(await ended, 0);
  });

  it('reloads the configuration after its start if SIGHUP arrived during the start', async () => {
    const { url, ended } = await started(() => configured('later'));
    signal('SIGHUP');
    const at = await url();
    await until(() => mayLogIn(at, 'later'));
    signal('SIGTERM');
    assert.equal(await ended, 0);
  });

  it('ends with 1 if a part cannot be stopped, and leaves no pid file', async (t) => {
    failStops(t);
    const { url, ended } = await started(() => configured('ann'));
    await url();
    signal('SIGTERM');
    assert.equal(await ended, 1);
    assert.equal(existsSync(join(folder, 'data', 'quayside.pid')), false);
  });

  /** A start that fails, because no machine has this address. */
  async function failedStart(isReloadRequested: boolean): Promise<number> {
    const loaded = await configured('ann', {
      QUAYSIDE_HTTP__HOST: '192.0.2.1',
      QUAYSIDE_HTTP__INSECURE: 'true',
    });
    return serve({
      loaded,
      load: () => configured('ann'),
      isReloadRequested: () => isReloadRequested,
      version: '0.0.0',
      output: new PassThrough(),
      exitNow: () => {},
    });
  }

  it('reports why it could not start even if a part cannot be stopped', async (t) => {
    failStops(t);
    await assert.rejects(failedStart(false), NO_ADDRESS);
  });

  it('reports why it could not start even if a reload was requested', async () => {
    await assert.rejects(failedStart(true), NO_ADDRESS);
  });
});
