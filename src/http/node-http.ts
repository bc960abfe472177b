import type { Socket } from 'node:net';
import type { HttpRequest } from './request.ts';

/**
 * What the front end uses of `node:http`. An `import` would read all of its exports, one of which loads a WebSocket
 * client: 37 ms of processor time, a fifteenth of each start.
 */
export const { createServer, IncomingMessage, ServerResponse, STATUS_CODES } =
  process.getBuiltinModule('node:http');

/** Internal to Node and missing from its types: builds the head of a response from its status line and its headers. */
const { _storeHeader: storeHeader } = ServerResponse.prototype as unknown as {
  _storeHeader(this: HttpResponse, statusLine: string, headers: unknown): void;
};

/** A response with constant header lines. */
export class HttpResponse extends ServerResponse<HttpRequest> {
  /**
   * Header lines, each with its CRLF, that follow the status line. If they were passed to `writeHead`, Node would
   * check, compare and join them for every response (ADR 3).
   */
  constantLines = '';

  /**
   * Clears the timeout of the previous response, which is still running if its client read slowly. It would disconnect
   * a get that waits now.
   */
  override assignSocket(socket: Socket): void {
    if (socket.timeout !== undefined && socket.timeout > 0) socket.setTimeout(0);
    super.assignSocket(socket);
  }

  /** Called by Node only. */
  _storeHeader(statusLine: string, headers: unknown): void {
    storeHeader.call(this, statusLine + this.constantLines, headers);
  }
}
