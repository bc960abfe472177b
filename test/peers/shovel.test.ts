import assert from 'node:assert/strict';
import { connect } from 'node:net';
import { describe, it } from 'node:test';
import rhea from 'rhea';
import { RabbitServer } from '../../bench/reference/rabbitmq.ts';
import { AmqpNode } from '../amqp/node.ts';
import { until } from '../support/until.ts';

// RabbitMQ's Shovel is an AMQP 1.0 client that many RabbitMQ users already run; it can move their messages to Quayside.

const COUNT = 200;

/**
 * Two shovels in the format of RabbitMQ's configuration: from its queue `from` to Quayside, and from Quayside to its
 * queue `to`.
 */
function shovels(port: number): string {
  const quayside = `{protocol,amqp10},{uris,["amqp://test:test@127.0.0.1:${port}?sasl=plain"]}`;
  const rabbit = (queue: string): string =>
    `{protocol,amqp091},{uris,["amqp://"]},{declarations,[{'queue.declare',[{queue,<<"${queue}">>},durable]}]}`;
  const publish = '{publish_fields,[{exchange,<<"">>},{routing_key,<<"to">>}]}';
  const common = '{ack_mode,on_confirm},{reconnect_delay,1}';
  return `[{out,[{source,[${rabbit('from')},{queue,<<"from">>}]},{destination,[${quayside},{target_address,<<"N/in">>}]},${common}]},
    {back,[{source,[${quayside},{source_address,<<"N/out">>}]},{destination,[${rabbit('to')},${publish}]},${common}]}]`;
}

describe('RabbitMQ’s Shovel', () => {
  it('moves messages from a RabbitMQ queue to Quayside, and back', async () => {
    const node = await AmqpNode.start();
    const rabbit = await RabbitServer.start(() => {}, shovels(node.port));
    try {
      // Wait until both shovels have declared their queues and attached.
      await until(() => node.server.counts.links === 2);
      const stomp = connect(rabbit.stompPort, '127.0.0.1');
      stomp.write('CONNECT\naccept-version:1.2\nhost:/\nlogin:guest\npasscode:guest\n\n\0');
      for (let i = 0; i < COUNT; i++) {
        const headers = `destination:/amq/queue/from\ncontent-type:text/plain\ncorrelation-id:c${i}\ncolour:blue`;
        stomp.write(`SEND\n${headers}\n\nm${i}\0`);
      }
      await until(async () => (await node.sizes('in')).ready === COUNT);
      stomp.destroy();
      for (let i = 0; i < COUNT; i++) {
        const { body, contentType, headers } = (await node.pop('in')) ?? assert.fail();
        assert.equal(Buffer.from(body).toString(), `m${i}`);
        assert.equal(contentType, 'text/plain');
        const pairs = headers.flatMap((name, at) => (at % 2 === 0 ? [`${name}=${headers[at + 1]}`] : []));
        assert.ok(pairs.includes('colour=blue') && pairs.includes(`correlation-id=c${i}`), String(pairs));
      }
      await node.insert('out', ...Array.from({ length: COUNT }, (_, i) => `b${i}`));
      const { amqpPort: port, user: username, password } = rabbit;
      const client = rhea.create_container().connect({ port, username, password, reconnect: false });
      const receiver = client.open_receiver('/amq/queue/to');
      const bodies: string[] = [];
      receiver.on('message', ({ message }) => bodies.push(String(message?.body.content)));
      await until(() => bodies.length === COUNT);
      assert.deepEqual(
        bodies,
        Array.from({ length: COUNT }, (_, i) => `b${i}`),
      );
      await until(async () => (await node.sizes('out')).reserved === 0);
      client.close();
    } finally {
      await rabbit.stop();
      await node.stop();
    }
  });
});
