import { type ConnectionOptions, getCACertificates, setDefaultCACertificates } from 'node:tls';
import type { EngineSettings } from './settings.ts';

export type TlsFiles = Pick<ConnectionOptions, 'ca' | 'cert' | 'key'>;

/**
 * The PEM files that settings name. If none names an authority, those of the system are trusted.
 * @throws Error naming the setting and the file
 */
export function readTlsFiles<Name extends string>(
  settings: EngineSettings<Name>,
  names: Readonly<Record<keyof TlsFiles, Name>>,
): TlsFiles {
  const [ca, cert, key] = [settings.file(names.ca), settings.file(names.cert), settings.file(names.key)];
  if (ca === null) trustSystemAuthorities();
  return { ...(ca !== null && { ca }), ...(cert !== null && { cert }), ...(key !== null && { key }) };
}

let areTrusted = false;

/**
 * Makes TLS clients of this process trust the system's authorities in addition to those that come with Node. Takes a
 * tenth of a second, so it is for engines that are reached over TLS and name no authority of their own.
 */
function trustSystemAuthorities(): void {
  if (areTrusted) return;
  areTrusted = true;
  setDefaultCACertificates([...new Set([...getCACertificates('default'), ...getCACertificates('system')])]);
}

/** How the TLS settings of an engine's URL are written. */
export interface TlsNames {
  /** The setting that names a PEM file of authorities: `ca=FILE`. */
  readonly authority: string;
  /** What makes the name of a certificate fit. */
  readonly name: string;
  /** What the URL says for a server that does not use TLS, and for one that does. */
  readonly without: string;
  readonly with: string;
}

const UNKNOWN_AUTHORITY =
  /self-signed certificate|unable to (get|verify)|unable to get (local )?issuer|certificate (is not trusted|chain too long)/i;
const OTHER_NAME = /altnames?|does not match certificate/i;
const WRONG_TIME = /certificate (has expired|is not yet valid)/i;
const NO_TLS = /wrong version number|packet length too long|SSL routines|does not support SSL/i;
const WANTS_TLS = /no (SSL )?encryption|SSL off|requires? (SSL|TLS)/i;
/** Node's own advice, which is for programs that do not trust the system's authorities. */
const NODES_ADVICE = /; if the root CA is installed locally.*$/s;

/** An error of a connection with what to do about it after a semicolon; unchanged if TLS is not the reason. */
export function withTlsHint(message: string, names: TlsNames): string {
  const hint = hintFor(message, names);
  return hint === null ? message : `${message.replace(NODES_ADVICE, '')}; ${hint}`;
}

function hintFor(message: string, names: TlsNames): string | null {
  if (UNKNOWN_AUTHORITY.test(message)) {
    return `name the authority's PEM file by ${names.authority} in the URL, or install the authority on this system`;
  }
  if (OTHER_NAME.test(message)) return `name the host in the URL as its certificate does${names.name}`;
  if (WRONG_TIME.test(message)) return "renew the server's certificate, or set the clock";
  if (NO_TLS.test(message)) return `if this port does not use TLS, write ${names.without}`;
  if (WANTS_TLS.test(message)) return `the server expects TLS: write ${names.with}`;
  return null;
}
