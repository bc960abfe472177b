import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const FOLDER = path.join(ROOT, 'docs/operate/disasters');
const read = (file: string): string => readFileSync(path.join(ROOT, file), 'utf8');

/** The test that causes each disaster. */
const HAPPENS_IN: Readonly<Record<string, string>> = {
  'certificate-expired.md': 'test/system/tls.test.ts',
  'disk-full.md': 'test/system/sqlite-disk-full.test.ts',
  'engine-lost.md': 'test/faults/faults.test.ts',
  'file-damaged.md': 'test/system/sqlite-damage.test.ts',
  'password-lost.md': 'test/system/start.test.ts',
  'wrong-clock.md': 'test/system/sqlite-clock.test.ts',
};

const PAGES = readdirSync(FOLDER).sort();

describe('The pages about disasters', () => {
  it('each describe a disaster that a test causes', () => {
    assert.deepEqual(PAGES, Object.keys(HAPPENS_IN));
    for (const file of Object.values(HAPPENS_IN)) assert.ok(existsSync(path.join(ROOT, file)), file);
  });

  for (const page of PAGES) {
    const text = readFileSync(path.join(FOLDER, page), 'utf8');
    const quoted = [...text.matchAll(/`([^`\n]+)`/g)].map(([, inner = '']) => inner);

    it(`have the sections What you see, What to do and Afterwards: ${page}`, () => {
      const sections = [...text.matchAll(/^## (.*)$/gm)].map(([, title]) => title);
      assert.deepEqual(sections, ['What you see', 'What to do', 'Afterwards']);
    });

    it(`name only existing alerts, metrics and log messages: ${page}`, () => {
      const rules = read('ops/prometheus/rules.yaml');
      const metrics = read('docs/reference/metrics.md');
      const events = read('docs/operate/log-events.md');
      for (const name of quoted) {
        if (/^Quayside[A-Z]/.test(name)) assert.ok(rules.includes(`alert: ${name}\n`), name);
        if (/^quayside_/.test(name)) assert.ok(metrics.includes(`\`${name}\``), name);
        // A quote as long as a sentence is a log message, unless it is a command or a message of the start.
        const isSentence = /^[a-zA-Z]+( [a-z,:'-]+){4,}/.test(name) && !/^(quayside|npm|openssl) /.test(name);
        if (isSentence) assert.ok(events.includes(`\`${name}\``), name);
      }
    });
  }
});
