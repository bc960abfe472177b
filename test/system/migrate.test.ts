import assert from 'node:assert/strict';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, describe, it } from 'node:test';
import { parse } from 'yaml';
import { needDebian } from '../support/debian.ts';
import { QueueClient } from '../support/http-client.ts';
import { PYTHON_SDK, run } from '../support/python.ts';
import { ServerProcess } from '../support/server-process.ts';
import { linkClient } from '../support/source-package.ts';

const PAGES = new URL('../../docs/migrate/', import.meta.url);
/** A code block followed by a text block with its output. */
const EXAMPLE = /^```(js|python|sh|ts)\n(.*?)^```\n+```text\n(.*?)^```$/gms;
const CODE = /^```(js|python|sh|ts)$/gm;

describe('The pages about migrating to Quayside', () => {
  let server: ServerProcess;
  let client: QueueClient;
  let folder: string;

  before(async () => {
    needDebian('curl', 'python3');
    folder = await mkdtemp(path.join(tmpdir(), 'quayside-migrate-'));
    await linkClient(folder);
    await writeFile(path.join(folder, 'package.json'), '{"type": "module"}');
    const [, yaml = ''] = /^```yaml\n(.*?)^```$/ms.exec(await page('README.md')) ?? [];
    server = await ServerProcess.start({
      config: { http: { users: { test1: 'test1' } }, ...(parse(yaml) as object) },
    });
    client = new QueueClient({ url: server.url });
  });

  after(async () => {
    client?.close();
    await server?.dispose();
    await rm(folder, { recursive: true });
  });

  for (const name of ['bullmq.md', 'celery.md', 'sqs.md', 'beanstalkd.md']) {
    it(`${name} has code that prints the output shown`, () => runExamples(name));
  }

  it('keuss-server.md has code that prints the output shown and copies elements unchanged', async () => {
    for (const body of ['one', 'two', 'three']) {
      await client.request('PUT', '/q/N/old?tries=1', {
        headers: { 'content-type': 'text/plain', 'x-ks-hdr-lang': 'en' },
        body,
      });
    }
    await runExamples('keuss-server.md');
    for (const body of ['one', 'two', 'three']) {
      const copy = await client.request('GET', '/q/N/new?to=0');
      assert.equal(copy.status, 200);
      assert.equal(copy.body.toString(), body);
      assert.equal(copy.headers['content-type'], 'text/plain');
      assert.equal(copy.headers['x-ks-hdr-lang'], 'en');
      assert.equal(copy.headers['x-ks-tries'], '1');
    }
    assert.equal((await client.request('GET', '/q/N/old?to=0')).status, 504);
  });

  it('keuss-server.md shows the configuration of the examples', async () => {
    const [, readme] = /^```yaml\n(.*?)^```$/ms.exec(await page('README.md')) ?? [];
    const [, own] = /^```yaml\n(.*?)^```$/ms.exec(await page('keuss-server.md')) ?? [];
    assert.equal(own, readme);
  });

  async function runExamples(name: string): Promise<void> {
    const text = await page(name);
    const examples = [...text.matchAll(EXAMPLE)];
    assert.equal(examples.length, text.match(CODE)?.length, 'each code block must be followed by its output');
    for (const [, language = '', code = '', printed] of examples) {
      assert.equal(await runCode(language, code), printed, code);
    }
  }

  async function runCode(language: string, code: string): Promise<string> {
    const env = {
      QUAYSIDE_URL: server.url,
      QUAYSIDE_USER: 'test1',
      QUAYSIDE_PASSWORD: 'test1',
      OLD_QUEUE: `${server.url}/q/N/old`,
      OLD_CREDENTIALS: 'test1:test1',
      NEW_QUEUE: `${server.url}/q/N/new`,
      NEW_CREDENTIALS: 'test1:test1',
      PYTHONPATH: path.join(PYTHON_SDK, 'src'),
    };
    if (language === 'python') return run('/usr/bin/python3', ['-c', code], env, folder);
    if (language === 'js' || language === 'ts') {
      const program = path.join(folder, `example.${language}`);
      await writeFile(program, code);
      return run(process.execPath, [program], env, folder);
    }
    return run('sh', ['-ec', code], env, folder);
  }
});

function page(name: string): Promise<string> {
  return readFile(new URL(name, PAGES), 'utf8');
}
