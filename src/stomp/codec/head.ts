import { QuaysideError } from '../../model/errors.ts';
import { quoteBytes } from '../../util/quote.ts';
import { malformed } from './malformed.ts';
import { type HeadRules, unescapeHeader } from './version.ts';

export interface Head {
  readonly command: string;
  readonly headers: readonly string[];
}

/**
 * Reads a frame's command and headers out of the text before the blank line, one character for each byte.
 * @throws QuaysideError `malformed-request`, `headers-too-large`
 */
export function parseHead(text: string, rules: HeadRules, mostHeaders: number): Head {
  const commandEnd = lineEnd(text, 0);
  const command = line(text, 0, commandEnd, rules);
  if (!COMMAND.test(command)) throw noCommand(command);
  const headers: string[] = [];
  for (let from = commandEnd + 1; from <= text.length; ) {
    const end = lineEnd(text, from);
    if (headers.length >= 2 * mostHeaders) {
      throw new QuaysideError(
        'headers-too-large',
        `The ${command} frame has more headers than the ${mostHeaders} that are allowed.`,
      );
    }
    addHeader(headers, line(text, from, end, rules), rules);
    from = end + 1;
  }
  return { command, headers };
}

/** The error for a client of another protocol, above all. */
export function noCommand(start: string): QuaysideError {
  return malformed(
    `${quoteBytes(start)} is no STOMP command. A frame starts with one in capital letters, such as SEND.`,
  );
}

/** A line as a message quotes it; one that may hold a password is not. */
function shown(text: string): string {
  return /pass/i.test(text) ? 'of a password' : quoteBytes(text);
}

/** Also what tells other protocols apart, which would otherwise be waited for to end their first frame. */
const COMMAND = /^[A-Z]{1,16}$/;

function lineEnd(text: string, from: number): number {
  const at = text.indexOf('\n', from);
  return at < 0 ? text.length : at;
}

function line(text: string, from: number, end: number, { crlf }: HeadRules): string {
  if (!crlf) return text.slice(from, end);
  const bare = text.slice(from, text[end - 1] === '\r' ? end - 1 : end);
  if (bare.includes('\r'))
    throw malformed(`The line ${shown(bare)} has a CR in the middle. Allowed: a CR before an LF.`);
  return bare;
}

function addHeader(headers: string[], text: string, rules: HeadRules): void {
  const colon = text.indexOf(':');
  if (colon < 1) throw malformed(`The header line ${shown(text)} is not name:value.`);
  const value = unescapeHeader(rules, text.slice(colon + 1));
  headers.push(unescapeHeader(rules, text.slice(0, colon)), rules.trims ? trimmed(value) : value);
}

function trimmed(value: string): string {
  let from = 0;
  let end = value.length;
  while (value[from] === ' ') from += 1;
  while (end > from && value[end - 1] === ' ') end -= 1;
  return value.slice(from, end);
}
