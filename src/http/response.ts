import type { Socket } from 'node:net';
import { ServerResponse } from './node-http.ts';
import type { HttpRequest } from './request.ts';

/** Node's own, which its types leave out: makes the head of a response of its status line and its other headers. */
const { _storeHeader: storeHeader } = ServerResponse.prototype as unknown as {
  _storeHeader(this: HttpResponse, statusLine: string, headers: unknown): void;
};

/** A response whose head has lines that do not change from one to the next. */
export class HttpResponse extends ServerResponse<HttpRequest> {
  /**
   * They follow the status line. As headers of `writeHead`, Node would check, compare and join them each time again
   * (ADR 3).
   */
  constantLines = '';

  /**
   * The connection is this response's turn. If the client read the one before slowly, a timer still runs for that,
   * which would cut off a get that waits now.
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
