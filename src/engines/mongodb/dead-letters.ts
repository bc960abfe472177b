import type { ClientSession } from 'mongodb';
import { bytesOfText } from '../../model/byte-text.ts';
import { letterHeaders } from '../../model/dead-letter.ts';
import { discard } from './discard.ts';
import { blank, type DeliveryHead, type ElementDocument } from './documents.ts';
import type { Parts } from './parts.ts';
import type { LetterTarget } from './policies.ts';
import { MAX_TIME_MS } from './settings.ts';
import { transact } from './transaction.ts';

/** Bytes of bodies that one transaction moves. */
const MOST_BYTES = 8 * 1024 * 1024;

type Host = Pick<Parts, 'store' | 'clock' | 'ids' | 'ops' | 'known' | 'policies' | 'touched' | 'died'>;

/** Moves elements whose last try has failed to the dead-letter queue of their namespace. */
export class DeadLetters {
  readonly #host: Host;

  constructor(host: Host) {
    this.#host = host;
  }

  /**
   * Moves each of them atomically, if it is still as it was read.
   * @param now the server's time, ms
   * @returns the `_id`s of those that were moved @throws CommitUnknown, Lost, Refused
   */
  async move(heads: readonly DeliveryHead[], now: number): Promise<Set<string>> {
    const moved = new Set<string>();
    for (const some of parts(heads)) {
      const targets = new Map(some.map((head) => [head._id, this.#targetOf(head)]));
      await this.#host.known.make([...targets.values()].flatMap((target) => target?.queue ?? []));
      const gone = await transact(this.#host.store, this.#host.clock, (session) =>
        this.#moveSome(session, some, targets, now),
      );
      for (const head of some) {
        if (!gone.has(head._id)) continue;
        moved.add(head._id);
        this.#tell(head, targets.get(head._id) ?? null);
      }
    }
    return moved;
  }

  #targetOf({ ns, queue, tries }: DeliveryHead): LetterTarget | null {
    return this.#host.policies.letterTarget({ ns, name: queue }, tries + 1);
  }

  async #moveSome(
    session: ClientSession,
    heads: readonly DeliveryHead[],
    targets: ReadonlyMap<string, LetterTarget | null>,
    now: number,
  ): Promise<Set<string>> {
    const { elements } = this.#host.store.collections;
    const options = { session, maxTimeMS: MAX_TIME_MS };
    const found = await elements.find({ _id: { $in: heads.map(({ _id }) => _id) } }, options).toArray();
    const byId = new Map(found.map((document) => [document._id, document]));
    // In the order in which they failed, since that is the order of their letters.
    const dying = heads.flatMap(({ _id, op }) => {
      const document = byId.get(_id);
      return document?.op === op ? [document] : [];
    });
    const letters = dying.flatMap((document) => {
      const target = targets.get(document._id) ?? null;
      return target === null ? [] : this.#letters(document, target, now);
    });
    if (letters.length === 0) return new Set();
    await elements.insertMany(letters, options);
    const ids = dying.map(({ _id }) => _id);
    const mayHaveKeys = dying.some(({ key }) => key !== undefined);
    await discard(this.#host, { ids, mayHaveKeys, now: new Date(now) }, options);
    return new Set(ids);
  }

  #letters(document: ElementDocument, { queue, groups }: LetterTarget, now: number): ElementDocument[] {
    const { bytes, type, encoding, body, headers, tries } = document;
    const id = this.#host.ids.next(now);
    const op = this.#host.ops.next();
    const facts = { from: bytesOfText(document.queue), at: now, tries: tries + 1 };
    const born = this.#host.policies.retentionMs(queue.ns) === null ? {} : { born: new Date(now) };
    return groups.map((group) => ({
      ...blank(id, queue, group, op),
      ...born,
      at: new Date(now),
      tries: 0,
      bytes,
      type,
      encoding,
      headers: letterHeaders(headers, facts),
      body,
    }));
  }

  #tell({ ns, queue, group }: DeliveryHead, target: LetterTarget | null): void {
    this.#host.died({ ns, name: queue }, group, 1);
    if (target !== null) this.#host.touched(target.queue);
  }
}

function* parts(heads: readonly DeliveryHead[]): Iterable<DeliveryHead[]> {
  let part: DeliveryHead[] = [];
  let bytes = 0;
  for (const head of heads) {
    if (part.length > 0 && bytes + head.bytes > MOST_BYTES) {
      yield part;
      part = [];
      bytes = 0;
    }
    part.push(head);
    bytes += head.bytes;
  }
  if (part.length > 0) yield part;
}
