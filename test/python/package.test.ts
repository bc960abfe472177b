import assert from 'node:assert/strict';
import { cp, mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterEach, before, beforeEach, describe, it } from 'node:test';
import { needDebian } from '../support/debian.ts';
import { PYTHON_SDK, run, runPython } from '../support/python.ts';

describe('The package of the Python SDK', () => {
  let folder: string;

  before(() => needDebian('mypy', 'python3-build', 'python3-setuptools', 'python3-venv', 'python3-wheel'));
  beforeEach(async () => {
    folder = await mkdtemp(path.join(tmpdir(), 'quayside-python-'));
  });
  afterEach(() => rm(folder, { recursive: true }));

  it('has types that pass mypy --strict', async () => {
    await run('/usr/bin/mypy', ['--strict', '--cache-dir', folder]);
  });

  it('can be built offline into an sdist and a wheel that can be imported', async () => {
    // Built from a copy, because setuptools writes next to the sources.
    const source = path.join(folder, 'source');
    const dist = path.join(folder, 'dist');
    await cp(PYTHON_SDK, source, { recursive: true });
    await runPython(['-m', 'build', '--no-isolation', '--outdir', dist, source], { PIP_NO_INDEX: '1' });
    const [wheel = '', sdist] = (await readdir(dist)).sort();
    assert.deepEqual([wheel, sdist], ['quayside-0.1.0-py3-none-any.whl', 'quayside-0.1.0.tar.gz']);
    assert.match(await runPython(['-m', 'zipfile', '--list', path.join(dist, wheel)]), /quayside\/py\.typed/);
    const program = 'import quayside.aio; quayside.Quayside().close(); print(quayside.__file__)';
    const printed = await runPython(['-c', program], { PYTHONPATH: path.join(dist, wheel) });
    assert.ok(printed.startsWith(dist), printed);
  });
});
