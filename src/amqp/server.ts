import { SessionServer } from '../session/server.ts';
import { AmqpConnection } from './connection.ts';
import type { AmqpParts } from './options.ts';

/** The AMQP 1.0 front end. Connections that the server's stop ends get a `close` with `amqp:connection:forced`. */
export class AmqpServer extends SessionServer {
  constructor(parts: AmqpParts) {
    super('AMQP', parts, (socket, arrival) => new AmqpConnection(parts, socket, arrival));
  }
}
