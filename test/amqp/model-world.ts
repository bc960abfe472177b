import assert from 'node:assert/strict';
import rhea, { type Message } from 'rhea';
import { delayAfter } from '../../src/amqp/links.ts';
import type { QueueKey } from '../../src/model/names.ts';
import type { ModelDelivery } from '../contract/model.ts';
import {
  ERROR_CODES,
  EVERY_QUEUE,
  isRejection,
  MAX_TURNS,
  NUMBER_HEADER,
  numberOf,
  refOf,
  type Sent,
  SessionWorld,
  UNLIMITED_MS,
} from '../session/model-world.ts';
import { AmqpClient, type Got, type TestReceiver, type TestSender } from './client.ts';
import type { AmqpNode } from './node.ts';

export const OUTCOMES = ['accepted', 'rejected', 'released', 'modified', 'failed', 'forgotten'] as const;
export type OutcomeInModel = (typeof OUTCOMES)[number];

export interface Wanted {
  readonly queue: QueueKey;
  readonly group: string;
  readonly isPop: boolean;
  readonly credit: number;
  readonly leaseMs: number | null;
}

interface HeldInModel {
  readonly got: Got;
  readonly delivery: ModelDelivery;
  readonly id: string;
  readonly token: string;
  readonly tries: number;
}

interface LinkInModel extends Omit<Wanted, 'credit'> {
  readonly receiver: TestReceiver;
  credit: number;
  held: HeldInModel[];
}

interface ClientInModel {
  readonly client: AmqpClient;
  readonly senders: Map<QueueKey, TestSender>;
  links: LinkInModel[];
}

/** The server behind AMQP, the model of its contents, and the unsettled messages of each client. */
export class AmqpWorld extends SessionWorld<AmqpNode> {
  readonly #clients = new Map<number, ClientInModel>();

  override close(): void {
    for (const { client } of this.#clients.values()) client.cut();
  }

  override async send(number: number, sent: Sent): Promise<void> {
    const { senders, client } = await this.#client(number);
    const { queue, body, contentType, tries, delayMs } = sent;
    const { element, headers } = this.numbered(sent);
    const sender = senders.get(queue) ?? (await client.sender(addressOf(queue)));
    senders.set(queue, sender);
    const { kind } = await sender.send({
      body: rhea.message.data_section(Buffer.from(body)),
      ...(contentType !== null && { content_type: contentType }),
      delivery_count: tries,
      message_annotations: { 'x-opt-delivery-delay': delayMs },
      application_properties: {
        ...headers,
        ...(queue.ns === 'stream' && { 'x-ks-groups': sent.groups.join(',') }),
      },
    });
    assert.equal(kind, 'accepted');
    this.model.insert(queue, element);
    await this.settle();
  }

  /** Attaches a receiving link; at most one for each queue and group of a client. */
  async attach(number: number, { queue, group: named, isPop, credit, leaseMs }: Wanted): Promise<void> {
    const one = await this.#client(number);
    const group = queue.ns === 'stream' ? named : '';
    if (one.links.some((link) => link.queue === queue && link.group === group)) return;
    const options = [group === '' ? '' : `group=${group}`, leaseMs === null ? '' : `lease=${leaseMs}`];
    const query = options.filter((option) => option !== '').join('&');
    const address = `${addressOf(queue)}${query === '' ? '' : `?${query}`}`;
    const receiver = await one.client.receiver(address, isPop ? { snd_settle_mode: 1 } : {}, credit);
    one.links.push({ receiver, queue, group, isPop, leaseMs: isPop ? null : leaseMs, credit, held: [] });
    await this.settle();
  }

  async grant(number: number, index: number, credit: number): Promise<void> {
    const link = pick((await this.#client(number)).links, index);
    if (link === undefined) return;
    link.receiver.link.add_credit(credit);
    link.credit += credit;
    await this.settle();
  }

  async drain(number: number, index: number): Promise<void> {
    const link = pick((await this.#client(number)).links, index);
    if (link === undefined || link.credit === 0) return;
    await link.receiver.drain();
    link.credit = 0;
    await this.settle();
  }

  async detach(number: number, index: number): Promise<void> {
    const one = await this.#client(number);
    const link = pick(one.links, index);
    if (link === undefined) return;
    await link.receiver.close();
    this.#over(one, link);
    await this.settle();
  }

  async settleOne(number: number, index: number, outcome: OutcomeInModel): Promise<void> {
    const one = await this.#client(number);
    const choice = pick(
      one.links.flatMap((link) => link.held.map((held) => ({ link, held }))),
      index,
    );
    if (choice === undefined) return;
    const { link, held } = choice;
    say(held.got, outcome);
    link.held = link.held.filter((other) => other !== held);
    const result = this.#carryOut(link, held, outcome);
    if (isRejection(result)) {
      assert.equal((await link.receiver.ended())?.info.code, ERROR_CODES[result]);
      this.#over(one, link);
    }
    await this.settle();
  }

  async leave(number: number, isPolite: boolean): Promise<void> {
    const one = this.#clients.get(number);
    if (one === undefined) return;
    if (isPolite) await one.client.close();
    else one.client.cut();
    this.#clients.delete(number);
    for (const link of [...one.links]) this.#over(one, link);
    await this.settle();
  }

  async #client(number: number): Promise<ClientInModel> {
    const known = this.#clients.get(number);
    if (known !== undefined) return known;
    const one = { client: await AmqpClient.open(this.node.port), senders: new Map(), links: [] };
    this.#clients.set(number, one);
    return one;
  }

  #over(one: ClientInModel, link: LinkInModel): void {
    one.links = one.links.filter((other) => other !== link);
    for (const held of link.held) this.model.rollback(link.queue, refOf(held), 0, true);
  }

  #carryOut({ queue }: LinkInModel, held: HeldInModel, outcome: OutcomeInModel): string {
    const ref = refOf(held);
    switch (outcome) {
      case 'accepted':
        return this.model.commit(queue, ref);
      case 'rejected':
        return this.model.rollback(queue, ref, delayAfter(held.tries), true);
      case 'released':
      case 'modified':
        return this.model.rollback(queue, ref, 0, false);
      case 'failed':
      case 'forgotten':
        return this.model.rollback(queue, ref, 0, true);
      default:
        return outcome satisfies never;
    }
  }

  #of(queue: QueueKey): LinkInModel[] {
    return [...this.#clients.values()].flatMap(({ links }) => links.filter((link) => link.queue === queue));
  }

  protected override groups(queue: QueueKey): ReadonlySet<string> {
    return new Set(this.#of(queue).map((link) => link.group));
  }

  protected override async receive(queue: QueueKey, group: string): Promise<number> {
    const links = this.#of(queue).filter((link) => link.group === group);
    const credit = links.reduce((sum, link) => sum + link.credit, 0);
    const due = this.paused.has(queue) ? [] : this.model.browse(queue, group, 'ready').slice(0, credit);
    const come = (): number => links.reduce((sum, { receiver }) => sum + receiver.inbox.length, 0);
    for (let turn = 0; turn < MAX_TURNS && come() < due.length; turn += 1) await new Promise(setImmediate);
    for (const expected of due) {
      const number = numberOf(expected);
      const link = links.find(({ receiver }) => receiver.inbox.some((got) => numberIn(got) === number));
      assert.ok(link !== undefined, `number ${number} never came`);
      this.#hand(link, number);
    }
    return due.length;
  }

  #hand(link: LinkInModel, number: string | undefined): void {
    const { inbox } = link.receiver;
    const [got] = inbox.splice(
      inbox.findIndex((one) => numberIn(one) === number),
      1,
    );
    const { queue, group, isPop, leaseMs } = link;
    assert.ok(got !== undefined);
    const id = String(got.message.message_annotations?.['x-opt-ks-id']);
    const delivery = this.taken(queue, group, isPop ? null : (leaseMs ?? UNLIMITED_MS), id);
    link.credit -= 1;
    assert.ok(link.credit >= 0, 'no more comes than there is credit');
    checkMessage(delivery, got.message);
    assert.equal(got.delivery.remote_settled, isPop);
    if (isPop) return;
    link.held.push({ got, delivery, id, token: delivery.token ?? '', tries: delivery.tries });
  }

  protected override expected(queue: QueueKey) {
    const all = EVERY_QUEUE.flatMap((one) => this.#of(one));
    return {
      waiting: this.#of(queue).filter(({ credit }) => credit > 0).length,
      held: all.reduce((sum, { held }) => sum + held.length, 0),
      subscriptions: all.length,
      sessions: this.#clients.size,
    };
  }

  protected override unexpected(): string[] {
    const links = EVERY_QUEUE.flatMap((one) => this.#of(one));
    return links.flatMap(({ receiver }) => receiver.inbox.map(({ message }) => JSON.stringify(message)));
  }
}

function pick<T>(choices: readonly T[], index: number): T | undefined {
  return choices[index % Math.max(1, choices.length)];
}

function addressOf({ ns, name }: QueueKey): string {
  return `${encodeURIComponent(ns)}/${encodeURIComponent(name)}`;
}

function numberIn({ message }: Got): string | undefined {
  return message.application_properties?.[NUMBER_HEADER];
}

function say({ delivery }: Got, outcome: OutcomeInModel): void {
  if (outcome === 'accepted') delivery.accept();
  else if (outcome === 'rejected') delivery.reject();
  else if (outcome === 'released') delivery.release();
  else if (outcome === 'forgotten') delivery.update(true);
  else delivery.modified({ delivery_failed: outcome === 'failed' });
}

function checkMessage({ element, tries, dueAt }: ModelDelivery, message: Message): void {
  const { body, contentType, headers } = element.content;
  assert.ok(Buffer.from(body).equals((message.body as { content: Buffer }).content));
  assert.equal(message.content_type ?? null, contentType);
  assert.equal(message.delivery_count ?? 0, tries);
  assert.equal(Number(message.message_annotations?.['x-opt-ks-mature']), dueAt);
  for (let at = 0; at < headers.length; at += 2) {
    const name = headers[at] ?? '';
    if (name === 'x-dl-at') continue;
    const value = Buffer.from(headers[at + 1] ?? '', 'latin1').toString();
    assert.equal(message.application_properties?.[name], value);
  }
}
