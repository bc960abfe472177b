// Uses the installed client library and prints results. `package.test.ts` runs it in Node, Deno and Bun, so it uses
// only what these have in common. Arguments: the server's address, user and password, and an address on which nothing
// listens.
import { Bury, LeaseLostError, Quayside, RetryLater, Worker } from 'quayside/client';

const [, , url = '', user = '', password = '', unreachable = ''] = process.argv;
const auth = { user, password };
const client = new Quayside({ url, auth });
const orders = client.queue('N/orders');

const inserted = await Promise.all(Array.from({ length: 100 }, (_, order) => orders.insert({ order })));
const many = await orders.insertMany([{ order: 100 }, { order: 101 }]);
console.log('different ids', new Set([...inserted.map(({ id }) => id), ...many.ids]).size);

const seen = new Map();
const { promise: isEmpty, resolve } = Promise.withResolvers();
const worker = new Worker(
  orders,
  ({ data, signal }) => {
    const { order } = data;
    const tries = (seen.get(order) ?? 0) + 1;
    seen.set(order, tries);
    if (signal.aborted) throw signal.reason;
    if (order === 7 && tries === 1) throw new RetryLater(1);
    if (order === 8) throw new Bury('not wanted');
  },
  { concurrency: 8 },
);
let settled = 0;
const onSettled = () => {
  settled += 1;
  if (settled === 102) resolve();
};
worker.on('committed', onSettled);
worker.on('buried', onSettled);
worker.start();
await isEmpty;
await worker.stop();
console.log('handled', seen.size, 'tries of 7', seen.get(7));
console.log('left', (await orders.status()).total);

const bytes = client.queue('N/bytes');
await bytes.insert(new Uint8Array([0, 255, 128]), { headers: { kind: 'raw' } });
for await (const { state, headers } of bytes.browse()) console.log('browsed', state, headers.kind);
const held = await bytes.reserve({ leaseMs: 60_000 });
console.log('reserved', [...(held?.body ?? [])].join());
await held?.commit();
await held?.commit().catch((error) => console.log('twice', error.code));
console.log('popped', await bytes.pop());

await client.queue('N/lost').insert(1);
const lost = await client.queue('N/lost').reserve({ leaseMs: 1 });
// The library's timers do not keep a program alive.
const alive = setInterval(() => {}, 1_000);
const aborted = new Promise((done) => lost?.signal.addEventListener('abort', () => done(lost.signal.reason)));
console.log('lost', (lost?.signal.aborted ? lost.signal.reason : await aborted) instanceof LeaseLostError);

clearInterval(alive);

const waiting = new AbortController();
const reading = client.queue('N/empty').pop({ waitMs: 60_000, signal: waiting.signal });
waiting.abort(new Error('enough'));
await reading.catch((error) => console.log('aborted', error.message));
await client.close();

const nobody = new Quayside({ url: unreachable, auth, retry: false });
await nobody
  .queue('N/orders')
  .insert(1)
  .catch((error) => console.log('unreachable', error.code, error.outcome));
await nobody.close();
