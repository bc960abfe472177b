import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** Writes a key and a self-signed certificate for this machine, as PEM. */
export function writeCertificate(files: { cert: string; key: string }, commonName = 'localhost'): void {
  const curve = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1'];
  const names = ['-subj', `/CN=${commonName}`, '-addext', 'subjectAltName=DNS:localhost,IP:127.0.0.1'];
  const out = ['-keyout', files.key, '-out', files.cert];
  execFileSync('openssl', ['req', '-x509', '-nodes', '-days', '2', ...curve, ...names, ...out], {
    stdio: 'pipe',
  });
}

/** Returns a key and a self-signed certificate, as PEM. */
export function makeCertificate(commonName?: string): { cert: string; key: string } {
  const folder = mkdtempSync(join(tmpdir(), 'quayside-certificate-'));
  try {
    const files = { cert: join(folder, 'cert.pem'), key: join(folder, 'key.pem') };
    writeCertificate(files, commonName);
    return { cert: readFileSync(files.cert, 'utf8'), key: readFileSync(files.key, 'utf8') };
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** The certificate and key with which a client authenticates. */
export interface ClientIdentity {
  readonly cert: string;
  readonly key: string;
}

/** Signs client certificates. */
export class CertificateAuthority {
  /** The authority's own certificate, PEM. */
  readonly cert: string;
  readonly #key: string;

  constructor() {
    ({ cert: this.cert, key: this.#key } = makeCertificate());
  }

  /**
   * @param subject such as `/CN=test`
   * @param days validity from now on; negative: it has expired
   * @param usage of the key; a client needs `clientAuth`
   */
  sign(subject: string, { days = 2, usage = 'clientAuth' } = {}): ClientIdentity {
    const folder = mkdtempSync(join(tmpdir(), 'quayside-certificate-'));
    const file = (name: string): string => join(folder, name);
    const openssl = (...words: readonly string[]): void => {
      execFileSync('openssl', words, { stdio: 'pipe' });
    };
    try {
      writeFileSync(file('ca.pem'), this.cert);
      writeFileSync(file('ca.key'), this.#key);
      writeFileSync(file('extensions'), `basicConstraints=CA:FALSE\nextendedKeyUsage=${usage}\n`);
      const request = ['-subj', subject, '-keyout', file('key'), '-out', file('csr')];
      openssl('req', '-nodes', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', ...request);
      const signer = ['-CA', file('ca.pem'), '-CAkey', file('ca.key'), '-days', String(days)];
      openssl(
        'x509',
        '-req',
        '-in',
        file('csr'),
        ...signer,
        '-extfile',
        file('extensions'),
        '-out',
        file('cert'),
      );
      return { cert: readFileSync(file('cert'), 'utf8'), key: readFileSync(file('key'), 'utf8') };
    } finally {
      rmSync(folder, { recursive: true });
    }
  }
}
