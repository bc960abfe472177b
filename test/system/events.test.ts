import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { EventClient } from '../support/event-client.ts';
import { QueueClient } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { Folder, type Program } from './program.ts';

describe('The event streams of a server', () => {
  let folder: Folder;
  const clients: EventClient[] = [];
  before(async () => {
    folder = await Folder.create({ ownProcesses: false });
  });
  after(async () => {
    for (const client of clients) client.close();
    await folder.dispose();
  });

  const write = (users: object): Promise<unknown> =>
    folder.write('q.json', { http: { users }, namespaces: { N: { url: 'sqlite:N.db' } } });

  const listen = async ({ url }: Program, credentials: string): Promise<EventClient> => {
    const client = new EventClient({ url, credentials });
    clients.push(client);
    await until(() => client.isComplete);
    return client;
  };

  it('end for users whose password or rights a reload changes, and continue for others', async () => {
    await write({ a: 'one', b: 'two', c: { password: 'three', rights: { N: ['read'] } } });
    const program = await folder.serve(['--config', 'q.json']);
    const [kept, changed, limited] = [
      await listen(program, 'a:one'),
      await listen(program, 'b:two'),
      await listen(program, 'c:three'),
    ];
    await write({ a: 'one', b: 'new', c: { password: 'three', rights: { N: ['write'] } } });
    program.signal('SIGHUP');
    await until(() => changed?.isClosed === true && limited?.isClosed === true);
    assert.equal(changed?.events.at(-1)?.data, '{"reason":"login-lost"}');
    assert.equal(limited?.events.at(-1)?.data, '{"reason":"rights-changed"}');
    const producer = new QueueClient({ url: program.url, credentials: 'a:one' });
    await producer.insert('N', 'q', 'x');
    await until(() => kept?.queue('N', 'q')?.size === 1);
    producer.close();
    await program.stop();
    await until(() => kept?.isClosed === true);
    assert.equal(kept?.events.at(-1)?.data, '{"reason":"shutting-down"}');
    assert.doesNotMatch(program.stderr, /connections were closed/);
  });

  it('start with the full state after a restart, even for a client with a Last-Event-ID', async () => {
    await write({ a: 'one' });
    const first = await folder.serve(['--config', 'q.json']);
    const before = await listen(first, 'a:one');
    await first.stop();
    const second = await folder.serve(['--config', 'q.json']);
    const again = new EventClient({ url: second.url, credentials: 'a:one', lastEventId: before.lastEventId });
    clients.push(again);
    await until(() => again.isComplete);
    assert.equal(again.events[0]?.data, '{"full":true}');
    assert.equal(again.queue('N', 'q')?.size, 1);
    again.close();
    await second.stop();
  });
});
