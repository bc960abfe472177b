import { lstatSync, rmSync } from 'node:fs';
import { connect } from 'node:net';

/** Owner and group may connect: mode 0660, for a proxy in the group of the server. */
const SOCKET_UMASK = 0o117;

/** Whether a listener's host names a Unix socket. */
export function isSocketPath(host: string): boolean {
  return host.startsWith('/');
}

/**
 * Listens on a Unix socket with mode 0660. One that a crash left is removed; one on which a server listens is not.
 * @param listen binds before it returns its promise
 * @throws Error with a code of the system: EADDRINUSE for a live socket, EEXIST for a file that is no socket
 */
export async function listenOnSocket(path: string, listen: () => Promise<void>): Promise<void> {
  await removeStaleSocket(path);
  // The mode must be right from the first moment: a chmod would come after the first stranger could connect.
  const umask = process.umask(SOCKET_UMASK);
  let listening: Promise<void>;
  try {
    listening = listen();
  } finally {
    process.umask(umask);
  }
  await listening;
}

async function removeStaleSocket(path: string): Promise<void> {
  const found = lstatSync(path, { throwIfNoEntry: false });
  if (found === undefined) return;
  if (!found.isSocket()) throw systemError('EEXIST');
  const code = await connectError(path);
  if (code === null) throw systemError('EADDRINUSE');
  if (code !== 'ECONNREFUSED' && code !== 'ENOENT') throw systemError(code);
  rmSync(path, { force: true });
}

/** Why nobody can connect; null if somebody listens. */
function connectError(path: string): Promise<string | null> {
  const { promise, resolve } = Promise.withResolvers<string | null>();
  const socket = connect(path, () => {
    socket.destroy();
    resolve(null);
  });
  socket.on('error', (error: NodeJS.ErrnoException) => resolve(error.code ?? error.message));
  return promise;
}

function systemError(code: string): NodeJS.ErrnoException {
  return Object.assign(new Error(code), { code });
}
