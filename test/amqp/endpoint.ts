import assert from 'node:assert/strict';
import { it } from 'node:test';
import { ConnectionEndpoint, type ConnectionHost } from '../../src/amqp/core/connection.ts';
import { TRANSFER_HEAD_BYTES } from '../../src/amqp/core/frames.ts';
import {
  type AmqpDeliveryState,
  type Endpoint,
  ReceiverEndpoint,
  type SenderEndpoint,
} from '../../src/amqp/core/link.ts';
import { ProtocolError } from '../../src/amqp/core/protocol-error.ts';
import { SentDelivery } from '../../src/amqp/core/session.ts';
import type { WriteObserver } from '../../src/session/socket-writer.ts';
import { type Said, splitFrame } from './raw-client.ts';
import { attachReceiver, begin, frame, type Performative, str, type Wire } from './wire.ts';

interface EndpointOptions {
  readonly messageBytes?: number;
  /** Credit of each link by which the client sends. */
  readonly credit?: number;
  readonly firstId?: number;
  /** Refuses links to this address. */
  readonly refused?: string;
}

/** The endpoint of a connection alone: frames in, frames out. It accepts every link. */
export class EndpointDriver implements ConnectionHost {
  readonly endpoint: ConnectionEndpoint;
  /** What the client was sent, and the observer of each frame. */
  readonly frames: Buffer[] = [];
  readonly observers: (WriteObserver | null)[] = [];
  /** Complete messages: delivery id, payload, and whether it came settled. */
  readonly messages: [number, Buffer, boolean][] = [];
  /** Dispositions of what was sent: delivery id, number of the state, whether settled. */
  readonly dispositions: [number, number, boolean][] = [];
  /** Links in the order of their `attach`. */
  readonly links: Endpoint[] = [];
  readonly detached: Endpoint[] = [];
  /** Credit that the client used up without sending. */
  creditLost = 0;
  readonly writer = {
    add: (observer: WriteObserver | null, bytes: Buffer): void => {
      this.frames.push(bytes);
      this.observers.push(observer);
    },
  };
  isFlushPlanned = false;
  readonly #credit: number;
  readonly #refused: string | null;

  constructor({ messageBytes = 65_536, credit = 10, firstId = 0, refused }: EndpointOptions = {}) {
    this.#credit = credit;
    this.#refused = refused ?? null;
    this.endpoint = new ConnectionEndpoint(this, {
      containerId: 'test',
      idleTimeoutMs: 0,
      version: '0.0.0',
      messageBytes,
      firstId,
    });
  }

  /** The kinds of frames that the client was sent. */
  get kinds(): Said['kind'][] {
    return this.frames.map((bytes) => splitFrame(bytes).kind);
  }

  /** What the client is sent from now on. */
  forget(): this {
    this.frames.length = 0;
    this.observers.length = 0;
    return this;
  }

  /** The link that was attached last, by which the client receives. */
  get sender(): SenderEndpoint {
    const link = this.links.at(-1);
    assert.ok(link !== undefined && !(link instanceof ReceiverEndpoint));
    return link;
  }

  /** Takes frames of the client. @throws ProtocolError */
  receive(...all: readonly Buffer[]): this {
    for (const bytes of all) {
      // Not at the beginning of its buffer, and not to its end.
      const chunk = Buffer.concat([Buffer.alloc(3, 0xee), bytes, Buffer.alloc(5, 0xee)]);
      this.endpoint.receive(chunk, 3, 3 + bytes.length);
    }
    return this;
  }

  /** The condition for which a frame ends the connection. */
  refusal(bytes: Buffer): string {
    try {
      this.receive(bytes);
    } catch (error) {
      assert.ok(error instanceof ProtocolError, String(error));
      return error.condition;
    }
    return 'passed';
  }

  /** Opens the connection and begins a session on channel 0. */
  begun(): this {
    return this.receive(frame('open', [str('client')]), begin());
  }

  /** Sends so many messages by the link that was attached last. */
  sendMessages(count: number, bytes = 4, isSettled = false): this {
    for (let i = 0; i < count; i++) {
      const message = Buffer.alloc(TRANSFER_HEAD_BYTES + bytes, 'm');
      const observer = { written: () => {}, lost: () => this.lost.push(i) };
      const delivery = new SentDelivery(this.sender, message, isSettled);
      delivery.observer = observer;
      this.sent.push(delivery);
      this.sender.session.send(delivery);
    }
    return this;
  }

  readonly lost: number[] = [];
  readonly sent: SentDelivery[] = [];

  planFlush(): void {
    this.isFlushPlanned = true;
  }

  onOpen(): void {}

  onAttach(link: Endpoint): void {
    const { source, target } = link.request;
    const addresses = [source?.address, target?.address];
    if (this.#refused !== null && addresses.includes(this.#refused)) {
      link.refuse({ condition: 'amqp:not-found', description: 'no' });
      return;
    }
    this.links.push(link);
    const onDetach = (): void => {
      this.detached.push(link);
      link.release();
    };
    if (link instanceof ReceiverEndpoint) {
      link.accept(
        {
          onMessage: (id, payload, isSettled) => this.messages.push([id, payload, isSettled]),
          onCreditLost: (count) => {
            this.creditLost += count;
          },
          onDetach,
        },
        1000,
      );
      link.grant(this.#credit);
      return;
    }
    link.accept(
      {
        onFlow: () => {},
        onDisposition: ({ id }: SentDelivery, { kind }: AmqpDeliveryState, isSettled: boolean) =>
          this.dispositions.push([id, kind, isSettled]),
        onDetach,
      },
      false,
      'move',
    );
  }

  onSessionCapacity(): void {}

  onQueued(): void {}

  onClose(): void {
    this.endpoint.close(null);
  }
}

/** How a connection with a session answers frames that have these fields. */
export function answers(
  name: Performative,
  cases: Readonly<Record<string, [(Wire | undefined)[], string]>>,
): void {
  for (const [what, [fields, expected]] of Object.entries(cases)) {
    it(`answers ${what} with ${expected}`, () => {
      const driver = new EndpointDriver();
      if (name !== 'open') driver.begun();
      if (!['open', 'begin', 'attach'].includes(name)) driver.receive(attachReceiver());
      assert.equal(driver.refusal(frame(name, fields)), expected);
    });
  }
}
