import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import rhea from 'rhea';
import type { User } from '../../src/access/user.ts';
import { AMQP_LIMITS } from '../../src/amqp/limits.ts';
import { plain } from '../support/broker.ts';
import { type AmqpClient, Ended, textOf } from './client.ts';
import { AmqpNode, TestAuthenticator } from './node.ts';
import { conditionOf, KIND } from './raw-client.ts';
import { begin, described, frame, list8, map8, NULL, str, sym, TRUE, uint } from './wire.ts';

const { types, message: rheaMessage } = rhea;

/** The error with which a rejected link ends. */
async function refusal(attaching: Promise<unknown>): Promise<Ended> {
  try {
    await attaching;
  } catch (error) {
    if (error instanceof Ended) return error;
    throw error;
  }
  assert.fail('the link was not rejected');
}

describe('a link', () => {
  let node: AmqpNode;
  let client: AmqpClient;

  before(async () => {
    node = await AmqpNode.start();
    client = await node.client();
  });
  after(() => node.stop());

  it('accepts three forms of queue addresses, and URLs, percent-encoded', async () => {
    const ways = [
      'N/a%20%2F%3F%C3%BC',
      '/q/N/a%20%2F%3Fü',
      '/queue/N/a %2F%3F%C3%BC',
      'amqp://localhost/N/a%20%2F%3Fü',
      'amqps://test:secret@localhost:5671/N/a%20%2F%3Fü',
      'AMQPS://[::1]/q/N/a%20%2F%3Fü',
      'amqp:///queue/N/a%20%2F%3Fü',
    ];
    for (const address of ways) {
      const sender = await client.sender(address);
      assert.equal((await sender.send({ body: address })).kind, 'accepted');
      assert.equal(sender.link.target.address, address);
      const receiver = await client.receiver(address, { snd_settle_mode: 1 }, 1);
      assert.equal(textOf(await receiver.next()), address);
      assert.equal(receiver.link.source.address, address);
      await receiver.close();
    }
    assert.deepEqual(await node.sizes('a /?ü'), { ready: 0, scheduled: 0, reserved: 0 });
  });

  it('is rejected if its address names no queue', async () => {
    const addresses = ['', 'N', '/N/a', 'N/a/b', '/q/N', '/x/N/a', 'N/%ff', 'N/%', 'N/%00', 'N/', '/a'];
    const urls = ['amqp://N/a', 'amqps://host', 'amqp://host/N', 'amqp://host/N/a/b', 'http://host/N/a'];
    for (const address of [...addresses, ...urls]) {
      for (const attaching of [client.sender({ address }), client.receiver({ address })]) {
        assert.equal((await refusal(attaching)).condition, 'amqp:invalid-field', address);
      }
    }
    assert.equal((await refusal(client.sender('X/a'))).condition, 'amqp:not-found');
  });

  it('accepts address options in a URL', async () => {
    await node.insertInto('S', 'url', { body: Buffer.from('x'), groups: ['G2'] });
    const receiver = await client.receiver('amqps://host/S/url?group=G2', { snd_settle_mode: 1 }, 1);
    assert.equal(textOf(await receiver.next()), 'x');
  });

  it('hides the password of a URL in the error about its address', async () => {
    const { message } = await refusal(client.sender('amqps://test:hush@host/N'));
    assert.ok(message.includes('The address "amqps://***@host/N" does not name a queue.'), message);
  });

  it('is rejected if its options are invalid', async () => {
    const broken = [
      'N/a?lease=0',
      'N/a?lease=x',
      'N/a?group=',
      'N/a?group=G',
      'N/a?colour=blue',
      'S/a?group=a%2Cb',
      'S/a?group=G1&group=G2',
      'N/a?lease=1000&lease=5000',
    ];
    for (const address of broken) {
      const error = await refusal(client.receiver(address));
      assert.deepEqual(
        [error.condition, error.info.code],
        ['amqp:invalid-field', 'invalid-parameter'],
        address,
      );
    }
  });

  it('accepts a group name that contains an equals sign', async () => {
    await node.insertInto('S', 'equal', { body: Buffer.from('of a'), groups: ['a'] });
    await node.insertInto('S', 'equal', { body: Buffer.from('of a=b='), groups: ['a=b='] });
    const receiver = await client.receiver('S/equal?group=a=b=', { snd_settle_mode: 1 }, 1);
    assert.equal(textOf(await receiver.next()), 'of a=b=');
  });

  it('is rejected if it names a group both in its address and in a filter', async () => {
    const filter = { 'x-ks-group': types.wrap_described('G2', 'quayside:group') };
    const error = await refusal(client.receiver({ address: 'S/a?group=G1', filter }));
    assert.deepEqual([error.condition, error.info.parameter], ['amqp:invalid-field', 'filter']);
  });

  it('is rejected if a sending link has options', async () => {
    for (const address of ['S/a?group=G1', 'N/a?lease=1000', 'S/a?group=G1&lease=1000']) {
      const error = await refusal(client.sender(address));
      assert.deepEqual(
        [error.condition, error.info.code],
        ['amqp:invalid-field', 'invalid-parameter'],
        address,
      );
      assert.match(error.message, /x-ks-groups/);
    }
    await client.sender('S/a?');
  });

  it('without an address routes each message by its property to', async () => {
    assert.ok([client.connection.offered_capabilities].flat().includes('ANONYMOUS-RELAY'));
    const link = client.connection.open_sender({ target: {}, autosettle: true } as never);
    await new Promise((resolve) => link.once('sendable', resolve));
    const outcomes: [string, string | undefined][] = [];
    const answered = (): Promise<unknown> => new Promise((resolve) => link.once('settled', resolve));
    for (const kind of ['accepted', 'rejected'] as const) {
      link.on(kind, ({ delivery }) => {
        const { error } = (delivery?.remote_state ?? {}) as { error?: { condition: string } };
        outcomes.push([kind, error?.condition]);
      });
    }
    for (const to of ['N/relayed-1', '/queue/N/relayed-2', undefined, 'N', 'X/a', 'N/a?lease=1000']) {
      const settled = answered();
      link.send({ body: 'x', ...(to !== undefined && { to }) });
      await settled;
    }
    const wrong = ['rejected', 'amqp:invalid-field'];
    const unknown = ['rejected', 'amqp:not-found'];
    assert.deepEqual(outcomes, [
      ['accepted', undefined],
      ['accepted', undefined],
      wrong,
      wrong,
      unknown,
      wrong,
    ]);
    const element = await node.pop('relayed-1');
    assert.deepEqual(element?.headers.slice(0, 2), ['to', 'N/relayed-1']);
    assert.equal((await node.sizes('relayed-2')).ready, 1);
  });

  it('without an address checks the right to write for each message', async () => {
    const reader = await node.client('reader');
    const link = reader.connection.open_sender({ target: {} } as never);
    await new Promise((resolve) => link.once('sendable', resolve));
    const rejected = new Promise<{ condition?: string }>((resolve) =>
      link.once('rejected', ({ delivery }) => {
        const { error } = (delivery?.remote_state ?? {}) as { error?: { condition?: string } };
        resolve(error ?? {});
      }),
    );
    link.send({ body: 'x', to: 'N/a' });
    assert.equal((await rejected).condition, 'amqp:unauthorized-access');
    await reader.close();
  });

  it('rejected for a missing right is logged once per minute, user and reason, with the number of repeats', async () => {
    const own = await AmqpNode.start();
    try {
      const reader = await own.client('reader');
      const manager = await own.client('manager');
      for (let i = 0; i < 4; i++) await refusal(reader.sender('N/a'));
      await refusal(manager.sender('N/a'));
      const [line, ...more] = own.logged.map(({ fields }) => fields as { user?: string; detail?: string });
      assert.deepEqual([line?.user, more.map(({ user }) => user)], ['reader', ['manager']]);
      own.clock.advance(60_000);
      const detail = `reader: ${line?.detail}`;
      assert.deepEqual(own.logged.at(-1)?.fields, {
        event: 'forbidden',
        protocol: 'AMQP',
        detail,
        leftOut: 3,
      });
    } finally {
      await own.stop();
    }
  });

  it('is rejected as not implemented if it requires an unsupported feature', async () => {
    const selector = {
      'apache.org:selector-filter:string': types.wrap_described("colour = 'blue'", 0x468c00000004),
    };
    const attempts = [
      client.sender({ dynamic: true }),
      client.receiver({ dynamic: true }),
      client.receiver({ address: 'N/a', filter: selector }),
    ];
    for (const attempt of attempts) assert.equal((await refusal(attempt)).condition, 'amqp:not-implemented');
  });

  it('announces outcomes, default outcome and the mode move in its source if the client receives', async () => {
    const receiver = await client.receiver('N/a');
    const { source } = receiver.link as unknown as { source: Record<string, unknown> };
    assert.deepEqual(source.outcomes, [
      'amqp:accepted:list',
      'amqp:rejected:list',
      'amqp:released:list',
      'amqp:modified:list',
    ]);
    assert.equal(source.distribution_mode, 'move');
    assert.ok(rheaMessage.is_modified(source.default_outcome as never));
    await receiver.close();
  });

  it('announces the maximum message size if the client sends', async () => {
    const sender = await client.sender('N/a');
    assert.equal(sender.link.max_message_size, 1_048_576 + AMQP_LIMITS.sectionBytes);
    await sender.close();
  });

  it('is rejected beyond the limit of links per connection, across sessions', async () => {
    const other = await node.client();
    const links = [];
    for (let i = 0; i < AMQP_LIMITS.links; i++) links.push(other.sender('N/a'));
    await Promise.all(links);
    const session = other.session();
    session.begin();
    const one = session.open_receiver({ source: 'N/a' });
    await new Promise<void>((resolve) => one.on('receiver_error', () => resolve()));
    assert.equal((one.error as { condition?: string }).condition, 'amqp:resource-limit-exceeded');
    await other.close();
  });

  it('may be attached again under its name', async () => {
    for (let round = 0; round < 3; round++) {
      const sender = await client.sender('N/again', { name: 'again' });
      assert.equal((await sender.send({ body: `round ${round}` })).kind, 'accepted');
      await sender.close();
    }
    assert.equal((await node.sizes('again')).ready, 3);
  });

  it('ends with its session, and its unsettled deliveries return to the queue', async () => {
    await node.insert('ended', 'x');
    const other = await node.client();
    const session = other.session();
    session.begin();
    const receiver = session.open_receiver({ source: 'N/ended', credit_window: 0, autoaccept: false });
    const came = new Promise<void>((resolve) => receiver.on('message', () => resolve()));
    receiver.add_credit(1);
    await came;
    const closed = new Promise<void>((resolve) => session.once('session_close', () => resolve()));
    session.close();
    await closed;
    while ((await node.sizes('ended')).reserved > 0);
    assert.equal((await node.pop('ended'))?.tries, 1);
    await other.close();
  });
});

describe('groups of a stream over AMQP', () => {
  it('are chosen by the application property x-ks-groups, and read by the address or a filter', async () => {
    const node = await AmqpNode.start();
    const client = await node.client();
    const sender = await client.sender('S/a');
    const send = (body: string, groups?: string): Promise<unknown> =>
      sender.send({ body, ...(groups && { application_properties: { 'x-ks-groups': groups } }) });
    await send('both');
    await send('second', 'G2');
    await send('third', ' G3 , G1');
    const raw = await node.rawClient(begin());
    const twice = map8(sym('x-ks-group'), str('G1'), sym('x-ks-group'), str('G2'));
    const source = described(0x28, list8(str('S/a'), NULL, NULL, NULL, NULL, NULL, NULL, twice));
    raw.write(frame('attach', [str('l'), uint(0), TRUE, NULL, NULL, source, described(0x29, list8())]));
    assert.equal(conditionOf(await raw.until(KIND.detach)), 'amqp:not-implemented');
    const filter = { 'x-ks-group': types.wrap_described('G2', 'quayside:group') };
    const sources: [string, object | string, string[]][] = [
      ['G1', 'S/a', ['both', 'third']],
      ['G2', { address: 'S/a', filter }, ['both', 'second']],
      ['G3', 'S/a?group=G3', ['third']],
    ];
    for (const [group, source, bodies] of sources) {
      const receiver = await client.receiver(source, {}, 10);
      for (const body of bodies) {
        const got = await receiver.next();
        assert.equal(textOf(got), body);
        assert.equal(got.message.message_annotations?.['x-opt-ks-group'], group);
        got.delivery.accept();
      }
      await receiver.drain();
      assert.equal(receiver.inbox.length, 0);
    }
    while ((await node.sizes('a', 'S')).reserved > 0);
    assert.deepEqual(await node.sizes('a', 'S'), { ready: 0, scheduled: 0, reserved: 0 });
    await client.close();
    await node.stop();
  });
});

describe('a message for more groups than a stream may have', () => {
  it('is rejected over AMQP, but messages pipelined with it are accepted', async () => {
    const node = await AmqpNode.start({ policies: [plain('S', { groups: ['G1'], maxGroups: 1 })] });
    const sender = await (await node.client()).sender('S/a');
    const groups = ['G2', 'G1', 'G3', 'G1', 'G4', 'G2'];
    const outcomes = await Promise.all(
      groups.map((group, i) =>
        sender.send({ body: String(i), application_properties: { 'x-ks-groups': group } }),
      ),
    );
    assert.deepEqual(
      outcomes.map(({ kind }) => kind),
      groups.map((group) => (group === 'G3' || group === 'G4' ? 'rejected' : 'accepted')),
    );
    for (const [group, expected] of [
      ['G1', ['1', '3']],
      ['G2', ['0', '5']],
    ] as const) {
      for (const body of expected) {
        assert.equal(Buffer.from((await node.pop('a', 'S', group))?.body ?? []).toString(), body);
      }
    }
    await node.stop();
  });

  it('is rejected over AMQP, and later messages for existing groups are accepted', async () => {
    const node = await AmqpNode.start({ policies: [plain('S', { groups: ['G1'], maxGroups: 1 })] });
    const client = await node.client();
    const sender = await client.sender('S/a');
    const send = (groups: string) => sender.send({ application_properties: { 'x-ks-groups': groups } });
    assert.equal((await send('G2')).kind, 'accepted');
    const { kind, error } = await send('G3');
    assert.deepEqual([kind, error?.condition], ['rejected', 'amqp:resource-limit-exceeded']);
    assert.equal((await send('G1,G2')).kind, 'accepted');
    assert.equal((await node.sizes('a', 'S')).ready, 2);
    await client.close();
    await node.stop();
  });
});

describe('rights over AMQP', () => {
  let node: AmqpNode;
  before(async () => {
    node = await AmqpNode.start();
  });
  after(() => node.stop());

  it('require write to send and read to receive; a namespace without any right is reported as unknown', async () => {
    const table = [
      ['reader', 'sender', 'amqp:unauthorized-access'],
      ['reader', 'receiver', null],
      ['writer', 'sender', null],
      ['writer', 'receiver', 'amqp:unauthorized-access'],
      ['manager', 'sender', 'amqp:unauthorized-access'],
      ['manager', 'receiver', 'amqp:unauthorized-access'],
      ['stranger', 'sender', 'amqp:not-found'],
      ['stranger', 'receiver', 'amqp:not-found'],
    ] as const;
    for (const [name, side, condition] of table) {
      const client = await node.client(name);
      if (condition === null) await client[side]('N/a');
      else assert.equal((await refusal(client[side]('N/a'))).condition, condition, `${name} ${side}`);
      await client.close();
    }
    assert.deepEqual(
      node.logged.map(({ fields }) => 'user' in fields && fields.user),
      ['reader', 'writer', 'manager', 'manager'],
    );
  });

  it('follow a reload of the users: links that lost their right are detached, others continue', async () => {
    const known = new TestAuthenticator();
    const writer = (): User | null =>
      known.recall(`Basic ${Buffer.from('writer:writer').toString('base64')}`);
    const client = await node.client();
    const sender = await client.sender('N/renewed');
    const receiver = await client.receiver('N/renewed');
    node.renewUsers((user) => user);
    assert.equal((await sender.send({ body: 'x' })).kind, 'accepted');
    node.renewUsers(writer);
    assert.equal((await receiver.ended())?.condition, 'amqp:unauthorized-access');
    assert.equal((await sender.send({ body: 'x' })).kind, 'accepted');
    node.renewUsers(() => null);
    assert.equal((await client.closed)?.condition, 'amqp:unauthorized-access');
  });
});
