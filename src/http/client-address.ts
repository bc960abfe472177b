import { isIP } from 'node:net';
import type { Networks } from '../access/networks.ts';
import { rareHeader } from './head.ts';

/** Of each header. About twenty addresses of IPv6. */
const MAX_LENGTH = 1_024;

/** The headers by which proxies name the address of a client; null if not sent. */
export interface ForwardedHeaders {
  /** `X-Forwarded-For`, all lines joined. */
  readonly forwardedFor: string | null;
  /** `Forwarded` (RFC 7239), all lines joined. */
  readonly forwarded: string | null;
}

/**
 * The address that a request comes from: its peer, or what trusted proxies say of it. Each proxy appends who it got the
 * request from, so the list is read from its end, as long as those who wrote it are trusted; what stands before that
 * may be invented. A client can send the header that its proxy leaves alone: if both headers are sent and differ,
 * neither is believed. Nor are headers longer than a chain of proxies makes: anonymous clients send them, too.
 */
export function clientAddress(peer: string, headers: ForwardedHeaders, trusted: Networks): string {
  const { forwardedFor, forwarded } = headers;
  if ((forwardedFor === null && forwarded === null) || !trusted.has(peer)) return peer;
  if ((forwardedFor ?? '').length > MAX_LENGTH || (forwarded ?? '').length > MAX_LENGTH) return peer;
  const first = forwardedFor === null ? null : lastUntrusted(peer, splitList(forwardedFor), trusted);
  const second = forwarded === null ? null : lastUntrusted(peer, forNodes(forwarded), trusted);
  if (first !== null && second !== null && first !== second) return peer;
  return first ?? second ?? peer;
}

/**
 * Whether a trusted proxy says that its client speaks TLS, in `X-Forwarded-Proto` or `Forwarded`. The last entry is the
 * proxy's own; what stands before it may be invented.
 */
export function isForwardedSecure(peer: string, rawHeaders: readonly string[], trusted: Networks): boolean {
  const proto = rareHeader(rawHeaders, 'x-forwarded-proto') ?? '';
  const forwarded = rareHeader(rawHeaders, 'forwarded') ?? '';
  if ((proto === '' && forwarded === '') || !trusted.has(peer)) return false;
  if (proto.length > MAX_LENGTH || forwarded.length > MAX_LENGTH) return false;
  if (splitList(proto).at(-1)?.toLowerCase() === 'https') return true;
  const last = splitElements(forwarded).at(-1) ?? '';
  // A semicolon in quotes, as in `for="…"`, begins no pair.
  const pairs = last.replace(/"([^"]*)"/g, (_, quoted: string) => quoted.replaceAll(';', ''));
  return /(?:^|;)\s*proto\s*=\s*https\s*(?:;|$)/i.test(pairs);
}

function lastUntrusted(peer: string, nodes: readonly string[], trusted: Networks): string {
  let known = peer;
  for (const node of nodes.toReversed()) {
    const address = addressOf(node);
    // `unknown`, an obfuscated name, or rubbish: the proxy that wrote it is as far as is known.
    if (address === null) return known;
    known = address;
    if (!trusted.has(address)) return known;
  }
  return known;
}

function splitList(text: string): string[] {
  return text.split(',').map((part) => part.trim());
}

/** The `for` of each element of a `Forwarded` header; '' if an element has none. */
function forNodes(header: string): string[] {
  return splitElements(header).map((element) => {
    const [, quoted, token] = /(?:^|;)\s*for\s*=\s*(?:"([^"]*)"|([^;\s]*))/i.exec(element) ?? [];
    return quoted ?? token ?? '';
  });
}

/**
 * Splits at the commas that stand outside quotes. A quote without an end quotes nothing: a client could hide with it
 * what its proxy appends.
 */
function splitElements(header: string): string[] {
  const elements: string[] = [];
  let start = 0;
  let openedAt = -1;
  for (let i = 0; i < header.length; i += 1) {
    const character = header[i];
    if (character === '"') openedAt = openedAt === -1 ? i : -1;
    else if (character === '\\' && openedAt !== -1) i += 1;
    else if (character === ',' && openedAt === -1) {
      elements.push(header.slice(start, i));
      start = i + 1;
    }
  }
  const last = header.slice(start);
  if (openedAt === -1) return [...elements, last];
  const [opened = '', ...rest] = header.slice(openedAt).split(',');
  return [...elements, header.slice(start, openedAt) + opened, ...rest];
}

/** The address of `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1` or `[2001:db8::1]:80`. */
function addressOf(node: string): string | null {
  const bracketed = /^\[([^\]]+)\](?::\d+)?$/.exec(node)?.[1];
  if (bracketed !== undefined) return isIP(bracketed) === 6 ? bracketed : null;
  if (isIP(node) !== 0) return node;
  const [, address = ''] = /^([\d.]+):\d+$/.exec(node) ?? [];
  return isIP(address) === 4 ? address : null;
}
