import { mkdir } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { OpenedConsole } from './opened.ts';
import { fill, pagesToShow, show } from './pictured.ts';

/**
 * Takes pictures of every page in both themes at three widths, for a review. `npm run console:screens` writes them to
 * `dist/screens`.
 */

const FOLDER = fileURLToPath(new URL('../../dist/screens/', import.meta.url));
const SIZES = [
  [1440, 900],
  [1024, 768],
  [390, 844],
] as const;
const THEMES = ['light', 'dark'] as const;
const opened = await OpenedConsole.open();
try {
  await fill(opened);
  const pages = await pagesToShow(opened);
  await mkdir(FOLDER, { recursive: true });
  for (const theme of THEMES) {
    for (const [width, height] of SIZES) {
      const page = await opened.page('#/', { theme, width, height });
      for (const pictured of pages) {
        await show(opened, page, pictured);
        await page.screenshot({ path: `${FOLDER}${pictured.name}-${width}-${theme}.png` });
      }
      await opened.check();
    }
  }
  process.stdout.write(`Pictures of ${pages.length} pages are in ${FOLDER}\n`);
} finally {
  await opened.close();
}
