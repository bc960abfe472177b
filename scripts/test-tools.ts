/**
 * `npm run test:tools`: installs the tools of the tests that `npm run test:ci` runs, and those of the documentation site.
 * The tests install missing tools themselves; CI does it before, because other tests read these folders.
 */
import { fileURLToPath } from 'node:url';
import { installTools } from './install-tools.ts';

const FOLDERS = ['site', 'test/ci/openapi', 'test/install/checkers', 'test/install/helm'];

await Promise.all(
  FOLDERS.map((folder) => installTools(fileURLToPath(new URL(`../${folder}`, import.meta.url)))),
);
