import { isIP } from 'node:net';
import type { Networks } from '../access/networks.ts';
import { rareHeader } from './head.ts';

// What proxies report about a client in `X-Forwarded-For`, `X-Forwarded-Proto` and `Forwarded` (RFC 7239).

/** Maximum length of each forwarding header: about twenty IPv6 addresses. */
const MAX_FORWARDED_LENGTH = 1_024;

/** The headers in which proxies report the address of a client; null if not sent. */
interface ForwardedHeaders {
  /** `X-Forwarded-For`, all lines joined. */
  readonly forwardedFor: string | null;
  /** `Forwarded` (RFC 7239), all lines joined. */
  readonly forwarded: string | null;
}

/**
 * The address of the client: the peer, or what trusted proxies report. Each proxy appends the address from which it got
 * the request, so the list is read from its end, as long as the proxy that wrote an entry is trusted; earlier entries
 * may be forged. A client can send the header that its proxy does not write: if both headers are sent and differ,
 * neither is believed. Overlong headers, which anonymous clients can send, are not read.
 */
export function clientAddress(peer: string, headers: ForwardedHeaders, trusted: Networks): string {
  const { forwardedFor, forwarded } = headers;
  if ((forwardedFor === null && forwarded === null) || !trusted.has(peer)) return peer;
  if ((forwardedFor ?? '').length > MAX_FORWARDED_LENGTH || (forwarded ?? '').length > MAX_FORWARDED_LENGTH)
    return peer;
  const fromForwardedFor =
    forwardedFor === null ? null : lastUntrusted(peer, splitList(forwardedFor), trusted);
  const fromForwarded = forwarded === null ? null : lastUntrusted(peer, forNodes(forwarded), trusted);
  if (fromForwardedFor !== null && fromForwarded !== null && fromForwardedFor !== fromForwarded) return peer;
  return fromForwardedFor ?? fromForwarded ?? peer;
}

/**
 * Whether a trusted proxy reports, in `X-Forwarded-Proto` or `Forwarded`, that its client uses TLS. The proxy itself
 * wrote the last entry; earlier entries may be forged.
 */
export function isForwardedSecure(peer: string, rawHeaders: readonly string[], trusted: Networks): boolean {
  const proto = rareHeader(rawHeaders, 'x-forwarded-proto') ?? '';
  const forwarded = rareHeader(rawHeaders, 'forwarded') ?? '';
  if ((proto === '' && forwarded === '') || !trusted.has(peer)) return false;
  if (proto.length > MAX_FORWARDED_LENGTH || forwarded.length > MAX_FORWARDED_LENGTH) return false;
  if (splitList(proto).at(-1)?.toLowerCase() === 'https') return true;
  const last = splitElements(forwarded).at(-1) ?? '';
  // A semicolon in quotes, as in `for="…"`, does not separate pairs.
  const pairs = last.replace(/"([^"]*)"/g, (_, quoted: string) => quoted.replaceAll(';', ''));
  return /(?:^|;)\s*proto\s*=\s*https\s*(?:;|$)/i.test(pairs);
}

function lastUntrusted(peer: string, nodes: readonly string[], trusted: Networks): string {
  let known = peer;
  for (const node of nodes.toReversed()) {
    const address = addressOf(node);
    // `unknown`, an obfuscated name, or no address at all: the last known address is that of the proxy that wrote it.
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
 * Splits at commas outside quotes. A quote that is not closed quotes nothing: a client could hide with it what its
 * proxy appends.
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
