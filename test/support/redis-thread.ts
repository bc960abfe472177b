/**
 * The thread behind `redisReply`. Executes the Redis commands that it receives one after another, each on a connection
 * of its own, and wakes the thread that waits for the reply.
 */
import { connect } from 'node:net';
import { type MessagePort, workerData } from 'node:worker_threads';
import type { RedisReply } from './redis-servers.ts';

export interface RedisThreadData {
  /** Its first cell is 1 when a reply was posted. */
  readonly replied: Int32Array;
  readonly port: MessagePort;
}

export interface RedisCommand {
  readonly serverPort: number;
  readonly command: readonly string[];
}

/** Undefined if the server closed the connection without a reply. */
export type RedisOutcome = { readonly reply: RedisReply | undefined } | { readonly error: Error };

const { replied, port } = workerData as RedisThreadData;
port.on('message', async (command: RedisCommand) => {
  const outcome: RedisOutcome = await execute(command).then(
    (reply) => ({ reply }),
    (error: Error) => ({ error }),
  );
  port.postMessage(outcome);
  Atomics.store(replied, 0, 1);
  Atomics.notify(replied, 0);
});

/** @throws Error if the server cannot be reached, or if the port is not one */
async function execute({ serverPort, command }: RedisCommand): Promise<RedisReply | undefined> {
  const { promise, resolve, reject } = Promise.withResolvers<RedisReply | undefined>();
  const socket = connect(serverPort, '127.0.0.1');
  let received = Buffer.alloc(0);
  socket.on('data', (data) => {
    received = Buffer.concat([received, data]);
    const read = readReply(received, 0);
    if (read === null) return;
    resolve(read.reply);
    socket.destroy();
  });
  socket.on('error', reject);
  socket.on('close', () => resolve(undefined));
  socket.write(
    Buffer.concat([
      Buffer.from(`*${command.length}\r\n`),
      ...command.map((word) => Buffer.from(`$${Buffer.byteLength(word)}\r\n${word}\r\n`)),
    ]),
  );
  return promise;
}

/** Reads the reply that starts at `from` (RESP 2). Returns null if it is incomplete. */
function readReply(bytes: Buffer, from: number): { reply: RedisReply; end: number } | null {
  const lineEnd = bytes.indexOf('\r\n', from);
  if (lineEnd === -1) return null;
  const line = bytes.toString('utf8', from + 1, lineEnd);
  let end = lineEnd + 2;
  switch (String.fromCharCode(bytes[from] ?? 0)) {
    case ':':
      return { reply: Number(line), end };
    case '$': {
      if (line === '-1') return { reply: null, end };
      const textEnd = end + Number(line);
      if (bytes.length < textEnd + 2) return null;
      return { reply: bytes.toString('utf8', end, textEnd), end: textEnd + 2 };
    }
    case '*': {
      if (line === '-1') return { reply: null, end };
      const replies: RedisReply[] = [];
      while (replies.length < Number(line)) {
        const read = readReply(bytes, end);
        if (read === null) return null;
        replies.push(read.reply);
        end = read.end;
      }
      return { reply: replies, end };
    }
    // A status or an error.
    default:
      return { reply: line, end };
  }
}
