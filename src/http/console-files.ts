import { hash } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import { extname, join } from 'node:path';
import { promisify } from 'node:util';
import { gzip } from 'node:zlib';

/** A file of the console, ready to be sent. */
interface ConsoleFile {
  readonly contentType: string;
  readonly bytes: Buffer;
  /** Null: compressing it saves nothing. */
  readonly gzipped: Buffer | null;
  readonly entityTag: string;
}

const INDEX = 'index.html';
/** Files below it have a hash of their content in their names. */
const ASSETS = 'assets';

const CONTENT_TYPES: Readonly<Record<string, string>> = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.json': 'application/json',
  '.map': 'application/json',
  '.svg': 'image/svg+xml',
  '.png': 'image/png',
  '.ico': 'image/x-icon',
  '.woff2': 'font/woff2',
};
const OTHER_TYPE = 'application/octet-stream';

const compress = promisify(gzip);

/**
 * The built pages of the console, read and compressed at their first use: a server whose console nobody opens starts without
 * them. Requests look names up in what was read, so that no path is ever made of one.
 */
export class ConsoleFiles {
  readonly #folder: string;
  #files: Promise<ReadonlyMap<string, ConsoleFile>> | null = null;

  constructor(folder: string) {
    this.#folder = folder;
  }

  /** Files by their path in the folder, with `/`; null if the console is not built. */
  async read(): Promise<ReadonlyMap<string, ConsoleFile> | null> {
    this.#files ??= readFiles(this.#folder);
    try {
      return await this.#files;
    } catch (error) {
      // It may be built while the server runs.
      this.#files = null;
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
      throw error;
    }
  }
}

async function readFiles(folder: string): Promise<ReadonlyMap<string, ConsoleFile>> {
  const names = [...(await filesIn(folder, '')), ...(await filesIn(join(folder, ASSETS), `${ASSETS}/`))];
  if (!names.includes(INDEX)) {
    throw Object.assign(new Error(`${folder} has no ${INDEX}`), { code: 'ENOENT' });
  }
  return new Map(await Promise.all(names.map(async (name) => [name, await readOne(folder, name)] as const)));
}

async function filesIn(folder: string, prefix: string): Promise<string[]> {
  const entries = await readdir(folder, { withFileTypes: true });
  return entries.filter((entry) => entry.isFile()).map(({ name }) => prefix + name);
}

async function readOne(folder: string, name: string): Promise<ConsoleFile> {
  const bytes = await readFile(join(folder, name));
  const gzipped = await compress(bytes);
  return {
    contentType: CONTENT_TYPES[extname(name)] ?? OTHER_TYPE,
    bytes,
    gzipped: gzipped.length < bytes.length ? gzipped : null,
    entityTag: `"${hash('sha256', bytes, 'base64url').slice(0, 22)}"`,
  };
}
