import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';

const givenPorts = new Set<number>();

/** A port of 127.0.0.1 on which nothing listens; a different one for each call of this process. */
export async function freePort(): Promise<number> {
  for (;;) {
    const probe = createServer().listen(0, '127.0.0.1');
    await once(probe, 'listening');
    const { port } = probe.address() as AddressInfo;
    probe.close();
    await once(probe, 'close');
    if (givenPorts.has(port)) continue;
    givenPorts.add(port);
    return port;
  }
}
