import { mkdir, writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { OpenedConsole } from './opened.ts';
import { fill, pagesToShow, show } from './pictured.ts';

/**
 * The pictures of README and docs/console.md: `npm run console:pictures` writes them to `docs/images`, to be committed.
 */

const FOLDER = fileURLToPath(new URL('../../docs/images/', import.meta.url));
const PICTURES = [
  ['overview', 'light'],
  ['queue', 'light'],
  ['element', 'dark'],
  ['exchanges', 'dark'],
] as const;
const SIZE = { width: 1200, height: 760 };
const QUALITY = 72;
const MAX_BYTES = 60 * 1024;

const opened = await OpenedConsole.open();
try {
  await fill(opened);
  const pages = await pagesToShow(opened);
  await mkdir(FOLDER, { recursive: true });
  for (const [name, theme] of PICTURES) {
    const pictured = pages.find((one) => one.name === name);
    if (pictured === undefined) throw new Error(`There is no page ${name}.`);
    const page = await opened.page('#/', { theme, ...SIZE });
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
    await show(opened, page, pictured);
    const devtools = await page.context().newCDPSession(page);
    const { data } = await devtools.send('Page.captureScreenshot', { format: 'webp', quality: QUALITY });
    const bytes = Buffer.from(data, 'base64');
    if (bytes.length > MAX_BYTES)
      throw new Error(`The picture of ${name} has ${bytes.length} bytes. Allowed: ${MAX_BYTES}.`);
    await writeFile(`${FOLDER}console-${name}.webp`, bytes);
    process.stdout.write(`docs/images/console-${name}.webp: ${bytes.length} bytes\n`);
  }
  await opened.check();
} finally {
  await opened.close();
}
