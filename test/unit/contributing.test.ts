import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';

const ROOT = new URL('../../', import.meta.url);
const TEXT = readFileSync(new URL('CONTRIBUTING.md', ROOT), 'utf8');

/** Paths of the source and of what stands with it; those with `<…>` or `…` are patterns. */
const PATH = /`((?:src|test|bench|scripts|docs)\/[\w./-]+)`/g;
/** `name` in `path`: what a reader looks for in that file. */
const PLACE = /`([^`\n]+)` in `((?:src|test|scripts)\/[\w./-]+)`/g;
/** Files of the journeys are named from `src` on, at the start of a line. */
const JOURNEY_FILE = /^ +((?:http|broker|engine)\/[\w-]+\.ts) /gm;

describe('CONTRIBUTING', () => {
  it('names paths that exist', () => {
    const paths = [...TEXT.matchAll(PATH)].map(([, path = '']) => path);
    const ofJourneys = [...TEXT.matchAll(JOURNEY_FILE)].map(([, path]) => `src/${path}`);
    assert.ok(paths.length > 20);
    assert.ok(ofJourneys.length > 4);
    assert.deepEqual(
      [...paths, ...ofJourneys].filter((path) => !existsSync(fileURLToPath(new URL(path, ROOT)))),
      [],
    );
  });

  it('names what the files that it points to hold', () => {
    const places = [...TEXT.matchAll(PLACE)];
    assert.ok(places.length >= 10);
    assert.deepEqual(
      places
        .filter(([, name = '', path = '']) => {
          const url = new URL(path, ROOT);
          return path.endsWith('.ts') || path.endsWith('.lua')
            ? !readFileSync(url, 'utf8').includes(name)
            : !existsSync(url);
        })
        .map(([whole]) => whole),
      [],
    );
  });
});
