import { X509Certificate } from 'node:crypto';
import type { Finding } from '../engine/engine.ts';
import type { Clock } from '../util/clock.ts';
import type { TlsMaterial } from '../util/sockets.ts';

/** The files that `tls` of a front end names. */
interface NamedTls {
  readonly cert: string;
  readonly clientCa?: string | undefined;
}

const DAY_MS = 24 * 60 * 60 * 1000;
/** By now a certificate of 90 days should have been renewed, which tools do 30 days before its end. */
const RENEW_DAYS = 14;

const PEM_CERTIFICATE = /-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----/gs;

/** The certificates of a PEM file, each as PEM. */
export function certificatesIn(pem: string): readonly string[] {
  return pem.match(PEM_CERTIFICATE) ?? [];
}

/** What an operator should know of the certificates of a front end; nothing if it has none. */
export function dateWarnings(
  tls: NamedTls | undefined,
  material: TlsMaterial | null | undefined,
  clock: Clock,
): string[] {
  if (tls === undefined || material == null) return [];
  return materialFindings('', tls, material, clock.now()).flatMap(({ level, message, hint }) =>
    level === 'ok' ? [] : [`${message}; ${hint}`],
  );
}

/** What is to be said of the dates of a front end's certificates. */
export function materialFindings(
  check: string,
  tls: NamedTls,
  { cert, clientCa }: TlsMaterial,
  now: number,
): readonly Finding[] {
  const authorities = clientCa === undefined ? [] : dateFindings(check, tls.clientCa ?? '', clientCa, now);
  return [...dateFindings(check, tls.cert, cert, now), ...authorities];
}

/** Whether each certificate of a PEM file is valid now, and for how long. */
function dateFindings(check: string, file: string, pem: string, now: number): readonly Finding[] {
  return certificatesIn(pem).map((certificate) => {
    const { subject, validFromDate, validToDate } = new X509Certificate(certificate);
    const named = `${subject.replaceAll('\n', ', ')} in ${file}`;
    if (now < validFromDate.getTime()) {
      const message = `${named} is not valid before ${validFromDate.toISOString()}`;
      return { level: 'error', check, message, hint: 'set the clock right, or use another certificate' };
    }
    if (now >= validToDate.getTime()) {
      const message = `${named} expired at ${validToDate.toISOString()}`;
      return { level: 'error', check, message, hint: 'renew it, and send SIGHUP to the server' };
    }
    const message = `${named} is valid until ${validToDate.toISOString()}`;
    if (validToDate.getTime() - now < RENEW_DAYS * DAY_MS) {
      return { level: 'warning', check, message, hint: 'renew it, and send SIGHUP to the server' };
    }
    return { level: 'ok', check, message, hint: null };
  });
}
