import { SessionServer } from '../session/server.ts';
import type { StompParts } from './options.ts';
import { StompSession } from './session.ts';

/** The STOMP front end. Sessions that the server's stop ends are closed without an ERROR. */
export class StompServer extends SessionServer {
  constructor(parts: StompParts) {
    super('STOMP', parts, (socket, arrival) => new StompSession(parts, socket, arrival));
  }
}
