import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import { after, before, describe, it } from 'node:test';
import rhea from 'rhea';
import { quote } from '../../src/util/quote.ts';
import { until } from '../support/until.ts';
import { type AmqpClient, Ended } from './client.ts';
import { AmqpNode } from './node.ts';

describe('an AMQP error names the invalid value and what is allowed', () => {
  let node: AmqpNode;
  let client: AmqpClient;

  before(async () => {
    node = await AmqpNode.start({ options: { bodyLimit: 1000 } });
    client = await node.client();
  });
  after(() => node.stop());

  const messageOf = async (attaching: Promise<unknown>): Promise<string> => {
    const error = await attaching.then(
      () => null,
      (reason: unknown) => reason,
    );
    assert.ok(error instanceof Ended, String(error));
    return error.message.slice(error.condition.length + 2);
  };

  for (const [address, message] of [
    [
      'N',
      'The address "N" does not name a queue. Use <namespace>/<queue>, with a / or ? within a name as %2F or %3F.',
    ],
    ['N/%ff', '"%ff" in the address is not percent-encoded UTF-8. Write % as %25.'],
    ['S/a?gruop=G1', 'Unknown option "gruop" of an address. Did you mean "group"? Allowed: group, lease.'],
    ['N/a?lease=soon', 'Invalid lease "soon". Allowed: milliseconds, a whole number from 1 to 315360000000.'],
  ] as const) {
    it(`in the address ${address}`, async () => {
      assert.equal(await messageOf(client.receiver(address)), message);
    });
  }

  it('in a source that requests both browsing and a lease', async () => {
    assert.equal(
      await messageOf(client.receiver({ address: 'N/a?lease=1000', distribution_mode: 'copy' })),
      'A link with distribution-mode "copy" does not reserve. Omit the option lease.',
    );
  });

  it('in a filter', async () => {
    const filter = { 'apache.org:selector-filter:string': rhea.types.wrap_string("a = 'b'") };
    assert.equal(
      await messageOf(client.receiver({ address: 'N/a', filter })),
      'Unknown filter "apache.org:selector-filter:string". Allowed: x-ks-group; to select, use an exchange.',
    );
  });

  for (const [groupName, source] of [
    ['group', { address: 'N/a?group=G1' }],
    ['x-ks-group', { address: 'N/a', filter: { 'x-ks-group': rhea.types.wrap_string('G1') } }],
  ] as const) {
    for (const distribution_mode of ['move', 'copy']) {
      it(`in a source with distribution-mode ${distribution_mode} whose group is given as ${groupName}`, async () => {
        assert.equal(
          await messageOf(client.receiver({ ...source, distribution_mode })),
          `${groupName} "G1" cannot be used: namespace N has plain queues. Leave ${groupName} out, or use a stream namespace.`,
        );
      });
    }
  }

  for (const [message, description] of [
    [
      { body: 'x', application_properties: { 'x-delta-t': 'soon' } },
      'Invalid x-delta-t "soon". Allowed: milliseconds, a whole number from 0 to 315360000000.',
    ],
    [
      { body: 'x', application_properties: { 'x-ks-groups': 'G1' } },
      'x-ks-groups "G1" cannot be used: namespace N has plain queues. Leave x-ks-groups out, or use a stream namespace.',
    ],
    [
      { body: rhea.message.data_section(Buffer.alloc(1001)) },
      'The body has 1001 bytes. Allowed: at most 1000.',
    ],
    [
      { body: 'x', delivery_annotations: { long: 'x'.repeat(70_000) } },
      'The message has more than 66536 bytes. Allowed: at most 1000 of the body, and 65536 of everything else.',
    ],
    [
      { body: 'x', application_properties: { colours: rhea.types.wrap_list(['blue']) } },
      'The value of "colours" is a list, map, array or described. Allowed with an element: simple types.',
    ],
  ] as const) {
    it(`in a message: ${description}`, async () => {
      const sender = await client.sender('N/a');
      const { kind, error } = await sender.send(message);
      assert.deepEqual([kind, error?.description], ['rejected', description]);
    });
  }

  for (const [name, value, parameter] of [
    ['Größe', 'x', 'Größe'],
    ['Größe', rhea.types.wrap_list(['blue']), 'Größe'],
    ['n'.repeat(300), rhea.types.wrap_list(['blue']), `${'n'.repeat(64)}…`],
  ] as const) {
    it(`in the application property ${parameter}, whose value is ${typeof value === 'string' ? 'simple' : 'a list'}`, async () => {
      const sender = await client.sender('N/a');
      const { error } = await sender.send({ body: 'x', application_properties: { [name]: value } });
      assert.ok(error?.description?.includes(quote(name)), error?.description);
      assert.equal(error?.info.parameter, parameter);
    });
  }

  for (const [to, reason] of [
    [undefined, 'The address "" does not name a queue.'],
    ['N', 'The address "N" does not name a queue.'],
    ['unknown/a', 'There is no namespace "unknown".'],
  ] as const) {
    it(`in the property to of a message on a link without an address: ${to}`, async () => {
      const link = client.connection.open_sender({ target: {}, autosettle: true } as never);
      await once(link, 'sendable');
      const rejected = once(link, 'rejected');
      link.send({ body: 'x', ...(to !== undefined && { to }) });
      const [{ delivery }] = await rejected;
      const { description, info } = delivery.remote_state.error;
      assert.ok(description.startsWith(`to: ${reason}`), description);
      assert.equal(info.parameter, 'to');
    });
  }

  for (const [what, bytes, message] of [
    [
      'of AMQP 0-9-1',
      Buffer.from('AMQP\0\0\x09\x01', 'latin1'),
      'The client sent the header of protocol 0, version 0.9.1 (AMQP 0-9-1, another protocol).',
    ],
    [
      'of AMQP without SASL',
      Buffer.from('AMQP\0\x01\0\0', 'latin1'),
      'The client sent the header of protocol 0, version 1.0.0.',
    ],
    [
      'of TLS',
      Buffer.from('16030100c8010000', 'hex'),
      'The client starts TLS, but this port is without TLS.',
    ],
    ['of HTTP', Buffer.from('GET / HTTP/1.1\r\n'), 'The connection starts with "GET / HT".'],
  ] as const) {
    it(`in the log, for a client that begins with the header ${what} and is sent the header of AMQP 1.0`, async () => {
      // One line per minute and network is logged about connections without a login.
      node.clock.advance(60_000);
      node.logged.length = 0;
      const socket = connect(node.port, '127.0.0.1');
      socket.write(bytes);
      const [answer] = await once(socket, 'data');
      assert.ok((answer as Buffer).subarray(0, 8).equals(Buffer.from('AMQP\x03\x01\0\0', 'latin1')));
      await until(() => node.logged.length > 0);
      const expected = 'Expected: the SASL header of AMQP 1.0 (protocol 3, version 1.0.0).';
      const [{ fields } = { fields: {} }] = node.logged;
      assert.equal((fields as { description?: string }).description, `${message} ${expected}`);
      assert.equal((fields as { address?: string }).address, '127.0.0.1');
      socket.destroy();
    });
  }
});
