import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** Writes a key and a certificate of its own for this machine, as PEM. */
export function writeCertificate(files: { cert: string; key: string }, commonName = 'localhost'): void {
  const curve = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1'];
  const names = ['-subj', `/CN=${commonName}`, '-addext', 'subjectAltName=DNS:localhost,IP:127.0.0.1'];
  const out = ['-keyout', files.key, '-out', files.cert];
  execFileSync('openssl', ['req', '-x509', '-nodes', '-days', '2', ...curve, ...names, ...out], {
    stdio: 'pipe',
  });
}

/** The same in memory. */
export function makeCertificate(): { cert: string; key: string } {
  const folder = mkdtempSync(join(tmpdir(), 'quayside-certificate-'));
  try {
    const files = { cert: join(folder, 'cert.pem'), key: join(folder, 'key.pem') };
    writeCertificate(files);
    return { cert: readFileSync(files.cert, 'utf8'), key: readFileSync(files.key, 'utf8') };
  } finally {
    rmSync(folder, { recursive: true });
  }
}
