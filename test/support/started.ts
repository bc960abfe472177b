import assert from 'node:assert/strict';

import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { spawnOwned } from './owned-process.ts';

/** A server that was started by a command, as its output describes it. */
export interface Started {
  readonly url: string;
  readonly pid: number;
  /** Password of the administrator that the first start creates; null at later starts. */
  readonly password: string | null;
  /** SIGTERM; resolves when the command has ended. */
  stop(): Promise<void>;
}

/** Starts a server and resolves when it listens. Its log is written to this process's. */
export async function start(
  command: string,
  args: readonly string[],
  options: object = {},
): Promise<Started> {
  const server = spawnOwned(command, args, { ...options, stdio: ['ignore', 'pipe', 'inherit'] });
  const ended = once(server, 'close');
  let [url, pid, password] = ['', 0, null as string | null];
  for await (const line of createInterface({ input: server.stdout })) {
    url ||= /listens on (\S+)$/.exec(line)?.[1] ?? '';
    pid ||= Number(/process is (\d+)/.exec(line)?.[1] ?? 0);
    password = /^ +password +(\S+)$/.exec(line)?.[1] ?? null;
    if (password !== null || line.includes('was shown at the first start')) break;
  }
  server.stdout.resume();
  assert.ok(pid > 0, 'the server listens');
  return {
    url: url.replace('//0.0.0.0:', '//127.0.0.1:'),
    pid,
    password,
    stop: async () => {
      process.kill(pid, 'SIGTERM');
      await ended;
    },
  };
}

export interface Login {
  readonly url: string;
  readonly password: string;
}

export async function insert({ url, password }: Login, queue: string, body: string): Promise<void> {
  const headers = { authorization: basic(password), 'content-type': 'application/json' };
  const { status } = await fetch(new URL(`/q/N/${queue}`, url), { method: 'PUT', headers, body });
  assert.equal(status, 200);
}

export async function pop({ url, password }: Login, queue: string): Promise<string> {
  const response = await fetch(new URL(`/q/N/${queue}`, url), {
    headers: { authorization: basic(password) },
  });
  return response.text();
}

function basic(password: string): string {
  return `Basic ${btoa(`admin:${password}`)}`;
}
