import { getCACertificates, setDefaultCACertificates } from 'node:tls';

let areTrusted = false;

/**
 * Makes TLS clients of this process trust the system's authorities in addition to those that come with Node. Takes a
 * tenth of a second, so it is for engines that are reached over TLS and name no authority of their own.
 */
export function trustSystemAuthorities(): void {
  if (areTrusted) return;
  areTrusted = true;
  setDefaultCACertificates([...new Set([...getCACertificates('default'), ...getCACertificates('system')])]);
}
