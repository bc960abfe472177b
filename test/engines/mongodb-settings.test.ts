import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { inspect } from 'node:util';
import type { EngineOptions } from '../../src/engine/engine.ts';
import { open } from '../../src/engines/mongodb/index.ts';
import { readSettings, type Settings } from '../../src/engines/mongodb/settings.ts';
import { shownOptions } from '../../src/server/namespaces.ts';
import { newElement } from '../support/elements.ts';
import { codeOf } from '../support/outcome.ts';
import { CountingClock, SILENT } from './postgres.ts';

const PASSWORD = 'canary-4711';

function options(url: string, settings: Record<string, unknown> = {}): EngineOptions {
  const clock = new CountingClock();
  return { url, dataDir: '', namespaces: [], clock, dedupWindowMs: 1000, settings, log: SILENT };
}

async function read(url: string): Promise<Omit<Settings, 'client'>> {
  const { client, ...settings } = readSettings(options(url));
  await client.close();
  return settings;
}

/** The message with which an engine says that it cannot be used; it never holds the password. */
function refusal(url: string, settings?: Record<string, unknown>): string {
  try {
    readSettings(options(url, settings));
  } catch (error) {
    const shown = inspect(error, { depth: 9, showHidden: true });
    for (const secret of [PASSWORD, encodeURIComponent(PASSWORD)]) assert.ok(!shown.includes(secret), shown);
    return error instanceof Error ? error.message : String(error);
  }
  return 'taken';
}

describe('The URL of a MongoDB engine', () => {
  it('names hosts and a database, and asks for most members and their journals', async () => {
    const settings = await read(`mongodb://u:${PASSWORD}@h1:27018,h2/jobs?replicaSet=rs0`);
    assert.equal(settings.database, 'jobs');
    assert.equal(settings.shown, 'mongodb://h1:27018,h2/jobs');
    assert.deepEqual(settings.writeConcern, { w: 'majority', journal: true, wtimeoutMS: 3000 });
    assert.equal(settings.isEncrypted, false);
    assert.equal(settings.isLocal, false);
    assert.equal(settings.givenTime, null);
  });

  it('has a database of its own where it names none', async () => {
    assert.equal((await read('mongodb://127.0.0.1')).database, 'quayside');
    assert.equal((await read('mongodb://127.0.0.1/?tls=true')).database, 'quayside');
    assert.equal((await read('mongodb://127.0.0.1/?tls=true')).isEncrypted, true);
    assert.equal((await read('mongodb://127.0.0.1:1,localhost:2')).isLocal, true);
  });

  it('may ask for less, or more, than most members', async () => {
    const { writeConcern } = await read('mongodb://h/d?w=1&journal=false');
    assert.deepEqual(writeConcern, { w: 1, journal: false, wtimeoutMS: 3000 });
    assert.equal((await read('mongodb://h/d?w=3')).writeConcern.w, 3);
  });

  it('keeps the deadlines that the answer within five seconds stands on', async () => {
    const url = 'mongodb://h/d?serverSelectionTimeoutMS=60000&socketTimeoutMS=0&maxPoolSize=5&appName=mine';
    const { client } = readSettings(options(url));
    assert.equal(client.options.serverSelectionTimeoutMS, 2000);
    assert.equal(client.options.socketTimeoutMS, 4000);
    assert.equal(client.options.maxPoolSize, 5);
    assert.equal(client.options.appName, 'mine');
    await client.close();
  });

  const wrong: [what: string, url: string, message: RegExp][] = [
    ['of another kind', `http://u:${PASSWORD}@h/d`, /no MongoDB URL; write mongodb:/],
    ['without a host', `mongodb://u:${PASSWORD}@/d`, /no MongoDB URL/],
    ['with a raw slash in the password', `mongodb://u:${PASSWORD}/x@h/d`, /percent-encode the rest/],
    ['with a raw question mark in it', `mongodb://u:${PASSWORD}?x@h/d`, /percent-encode the rest/],
    ['with a raw at sign in it', `mongodb://u:${PASSWORD}@x@h/d`, /the driver refuses the URL/],
    ['with a stray percent sign', `mongodb://u:${PASSWORD}%@h/d`, /percent-encode the rest/],
    ['with a port that is none', `mongodb://u:${PASSWORD}@h:x/d`, /percent-encode the rest/],
    ['with a database that is no name', `mongodb://u:${PASSWORD}@h/a.b`, /no plain name; use up to 38/],
    ['with an unknown option', `mongodb://u:${PASSWORD}@h/d?nonsense=1`, /nonsense/],
    [
      'that reads from secondaries',
      `mongodb://h/d?readPreference=nearest`,
      /cannot be chosen.*; leave it out/,
    ],
    ['that forbids the safe retry', `mongodb://h/d?retryWrites=false`, /retrywrites cannot be chosen/],
    ['that asks for no answers', `mongodb://h/d?w=0`, /w=0 asks for no answers; use w=1/],
  ];
  for (const [what, url, message] of wrong) {
    it(`is refused ${what}, without showing the password`, () => assert.match(refusal(url), message));
  }

  it('is all that sets the engine: other settings are refused', () => {
    assert.match(refusal('mongodb://h/d', { prefix: 'x' }), /unknown setting "prefix"; all stand in the URL/);
  });

  it('is shown with its options, and with no secret among them', () => {
    const url = `mongodb://u:${PASSWORD}@h/d?replicaSet=rs0&tlsCertificateKeyFilePassword=${PASSWORD}`;
    assert.deepEqual(shownOptions(url), { replicaSet: 'rs0', tlsCertificateKeyFilePassword: '***' });
    assert.deepEqual(shownOptions('mongodb+srv://h/d?tls=true'), { tls: 'true' });
    assert.deepEqual(shownOptions('mongodb://h/d'), {});
    assert.deepEqual(shownOptions('redis://h/?db=1'), {});
  });

  it('is opened without a word to the server, so that an engine can be stopped that never started', async () => {
    const engine = open(options('mongodb://127.0.0.1:1/d'));
    await engine.stop();
    await engine.stop();
  });

  it('says nothing of what no document can hold: such a body is refused before anything is sent', async () => {
    const engine = open(options('mongodb://127.0.0.1:1/d'));
    const insert = (bytes: number): Promise<string> =>
      codeOf(engine.storage.insert({ ns: 'n', name: 'q' }, [newElement({ body: Buffer.alloc(bytes) })]));
    assert.equal(await insert(15 * 1024 * 1024 + 1), 'body-too-large');
    assert.equal(await insert(1), 'storage-unavailable');
    await engine.stop();
  });

  it('that no server answers keeps the engine from starting, and leaves nothing behind', async () => {
    const clock = new CountingClock();
    const engine = open({ ...options(`mongodb://u:${PASSWORD}@127.0.0.1:1/d?directConnection=true`), clock });
    await assert.rejects(engine.start(), (error: Error) => {
      assert.match(
        error.message,
        /^mongodb:\/\/127\.0\.0\.1:1\/d: .*ECONNREFUSED.*; see that the replica set/,
      );
      assert.ok(!inspect(error, { depth: 9 }).includes(PASSWORD));
      return true;
    });
    await engine.stop();
    assert.equal(clock.pending, 0);
  });
});
