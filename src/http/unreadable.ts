import type { ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import { type ErrorCode, QuaysideError } from '../model/errors.ts';
import { didYouMean } from '../util/did-you-mean.ts';
import { quote } from '../util/quote.ts';
import { errorResponse } from './errors.ts';
import { isReadInChunks } from './request.ts';
import { METHODS } from './route.ts';

// What Node's parser refuses never becomes a request. It is answered here, straight on the connection, which
// then ends: after a line that could not be read, it is unknown where the next request begins.

const TIMED_OUT = 'ERR_HTTP_REQUEST_TIMEOUT';

interface ParserError extends Error {
  readonly code?: string;
  /** The parser's own words for what is wrong. */
  readonly reason?: string;
  readonly rawPacket?: Buffer;
}

/** Answers bytes that are no request, or one that did not come to its end in time. */
export function respondToUnreadable(thrown: Error, socket: Duplex, headers: readonly string[]): void {
  const error = thrown as ParserError;
  // Its reader has a limit of its own.
  if (error.code === TIMED_OUT && isReadInChunks(socket)) return;
  // Anything else is a connection that broke, or one that never became TLS: no response could be read.
  const isOfHttp = error.code?.startsWith('HPE_') || error.code === TIMED_OUT;
  if (isOfHttp && socket.writable && isQuiet(socket)) endWith(socket, refusal(error), headers);
  else socket.destroy();
}

/** CONNECT asks for a tunnel, and Node passes on the bare connection. */
export function refuseTunnel(socket: Duplex, headers: readonly string[]): void {
  // Node has let go of this socket, and with it of its errors.
  socket.on('error', () => socket.destroy());
  endWith(socket, unknownMethod('CONNECT'), headers);
}

/** Whether a response can be written now without landing in the middle of another one. */
function isQuiet(socket: Duplex): boolean {
  // Node's own field for the response that is first in the row of this connection, null between responses. If it
  // still waits for its body or its element, what is written now is its response.
  const { _httpMessage: first } = socket as Duplex & { _httpMessage?: ServerResponse | null };
  return !first?.headersSent;
}

function refusal({ code, reason, rawPacket }: ParserError): QuaysideError {
  switch (code) {
    case 'HPE_HEADER_OVERFLOW':
      return refused(
        'headers-too-large',
        'The request line and the headers have more than 16 KiB together, the limit.',
      );
    case 'HPE_CHUNK_EXTENSIONS_OVERFLOW':
      return refused('body-too-large', 'The chunk extensions have more than 16 KiB, the limit.');
    case TIMED_OUT:
      return refused('request-timeout', 'The request did not arrive in time.');
    case 'HPE_INVALID_METHOD':
      return notARequest(rawPacket?.toString('latin1', 0, 2048) ?? '');
    default:
      return refused('malformed-request', `The request is not well-formed HTTP: ${reason ?? code}.`);
  }
}

/** A method that Node does not know, or something that is not HTTP at all. */
function notARequest(packet: string): QuaysideError {
  const [, method] = /^([\w!#$%&'*+.^`|~-]{1,64}) \/\S* HTTP\/1\.[01]\r?\n/.exec(packet) ?? [];
  if (method !== undefined) return unknownMethod(method);
  const [line = ''] = packet.split(/\r?\n/, 1);
  const hint = packet.startsWith(TLS_HANDSHAKE)
    ? ' This looks like TLS, and the port expects plain HTTP.'
    : '';
  return refused(
    'malformed-request',
    `${quote(line)} is not an HTTP request line. Expected: METHOD /path HTTP/1.1.${hint}`,
  );
}

const TLS_HANDSHAKE = '\u0016\u0003';

function unknownMethod(method: string): QuaysideError {
  const hint = didYouMean(method, METHODS);
  return refused(
    'method-not-allowed',
    `Method ${quote(method)} is not supported.${hint || ` Allowed: ${METHODS.join(', ')}.`}`,
  );
}

function refused(code: ErrorCode, message: string): QuaysideError {
  return new QuaysideError(code, message);
}

function endWith(socket: Duplex, error: QuaysideError, headers: readonly string[]): void {
  const { status, reason, contentType, body } = errorResponse(error, null);
  const lines = [`HTTP/1.1 ${status} ${reason}`, `Date: ${new Date().toUTCString()}`];
  for (let at = 0; at + 1 < headers.length; at += 2) lines.push(`${headers[at]}: ${headers[at + 1]}`);
  if (error.code === 'method-not-allowed') lines.push(`allow: ${METHODS.join(', ')}`);
  lines.push(
    `content-type: ${contentType}`,
    `content-length: ${Buffer.byteLength(body)}`,
    'connection: close',
  );
  socket.end(`${lines.join('\r\n')}\r\n\r\n${body}`, () => socket.destroy());
}
