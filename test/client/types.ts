/**
 * What the compiler accepts and rejects in a program that uses the client library; `npm run check` compiles it, nothing
 * runs it.
 */
import { Bury, Quayside, type StandardSchema, Worker } from '../../src/client/index.ts';

declare const Order: StandardSchema<{ readonly id: number }>;
declare const maybe: number | undefined;

export async function program(): Promise<void> {
  const quayside = new Quayside({ auth: () => 'Bearer token', retry: { attempts: maybe } });
  const plain = quayside.queue('N/plain');
  const orders = quayside.queue('N/orders', { schema: Order });

  // An option that is undefined is one that is not given, also with `exactOptionalPropertyTypes`.
  await orders.insert({ id: 1 }, { delayMs: maybe, ttlMs: maybe, headers: undefined });
  const job = await orders.reserve({ leaseMs: maybe, waitMs: maybe });
  const id: number | undefined = job?.data.id;
  await job?.rollback({ delayMs: maybe, reason: id === undefined ? undefined : 'later' });
  new Worker(orders, ({ data }) => data.id, { leaseMs: maybe, group: undefined, handlerTimeoutMs: maybe });

  // @ts-expect-error A queue's name has a namespace.
  quayside.queue('orders');
  // @ts-expect-error Types come from a schema or a codec, which check them.
  quayside.queue<{ id: number }>('N/orders');
  // @ts-expect-error Data without a schema are unknown.
  (await plain.pop())?.data.id;
  // @ts-expect-error A pop returns no reservation.
  await (await plain.pop())?.commit();
  // @ts-expect-error A pop has no lease.
  await plain.pop({ leaseMs: 1_000 });
  // @ts-expect-error Lengths of time are milliseconds and have names that end in `Ms`.
  await plain.insert({}, { delay: 5 });
  // @ts-expect-error The schema rejects it.
  await orders.insert({ id: 'one' });
  // @ts-expect-error A burial has a reason.
  await job?.bury();
  // @ts-expect-error A burial has a reason.
  new Bury();
  // @ts-expect-error There is no such event.
  new Worker(plain, () => {}).on('comitted', () => {});
  // @ts-expect-error A worker takes a queue, not its name.
  new Worker('N/plain', () => {});
  // @ts-expect-error Credentials have a password.
  new Quayside({ auth: { user: 'ann' } });
}
