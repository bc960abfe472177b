import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { Binary, BSON } from 'mongodb';
import {
  blank,
  contentFields,
  delivery,
  deliveryId,
  type ElementDocument,
  keyId,
  queueText,
} from '../../src/engines/mongodb/documents.ts';
import { Ids, Ops } from '../../src/engines/mongodb/ids.ts';
import { Policies } from '../../src/engines/mongodb/policies.ts';
import { documentsOf } from '../../src/engines/mongodb/verbs/elements.ts';
import { newElement } from '../support/elements.ts';

const NOW = Date.UTC(2026, 0, 1);
const DAY_MS = 24 * 3600 * 1000;
const HOST = {
  dedupWindowMs: DAY_MS,
  ops: new Ops(),
  policies: new Policies([
    { name: 'plain', groups: null, deadLetter: null, retentionMs: null },
    { name: 'kept', groups: ['g1'], deadLetter: null, retentionMs: 1000 },
  ]),
};

/** What comes back from a server that was given a document. */
function stored(document: ElementDocument): ElementDocument {
  return BSON.deserialize(BSON.serialize(document)) as ElementDocument;
}

describe('An element as documents of MongoDB', () => {
  it('comes back byte for byte and character for character', () => {
    const element = newElement({
      body: Buffer.from([0, 255, 10, 36]),
      contentType: 'text/$x; charset="é"',
      contentEncoding: 'gzip',
      headers: ['$set', '$$NOW', '__proto__', 'a.b', 'a', '1', 'a', '2'],
      tries: 3,
    });
    const queue = { ns: 'plain', name: "$q. it's" };
    const [document] = documentsOf(HOST, { queue, element, id: 'id-1' }, NOW);
    assert.ok(document !== undefined);
    const back = delivery(stored(document), null);
    assert.ok(element.body.length === back.body.length && Buffer.from(element.body).equals(back.body));
    const { body: _, ...fields } = back;
    assert.deepEqual(fields, {
      id: 'id-1',
      group: '',
      tries: 3,
      matureAt: NOW,
      lease: null,
      contentType: element.contentType,
      contentEncoding: 'gzip',
      headers: element.headers,
    });
  });

  it('is one document for each group, once', () => {
    const element = newElement({ groups: ['g1', 'g2', 'g1'] });
    const documents = documentsOf(HOST, { queue: { ns: 'kept', name: 'q' }, element, id: 'id-1' }, NOW);
    assert.deepEqual(
      documents.map(({ _id, group }) => [_id, group]),
      [
        ['id-1/g1', 'g1'],
        ['id-1/g2', 'g2'],
      ],
    );
  });

  it('has its dedup key once, and as long as that is to be remembered it is not deleted', () => {
    const element = newElement({ groups: ['g1', 'g2'], dedupKey: 'k' });
    const wanted = { queue: { ns: 'kept', name: 'q' }, element, id: 'id-1' };
    const [first, second] = documentsOf(HOST, wanted, NOW);
    assert.equal(first?.key, keyId(wanted.queue, 'k'));
    assert.deepEqual(first?.deleteAfter, new Date(NOW + DAY_MS));
    assert.ok(second !== undefined && !('key' in second) && !('deleteAfter' in second));
  });

  it('matures when it is asked to, or after its delay by the time of the server', () => {
    const at = (fields: Parameters<typeof newElement>[0]): number | undefined => {
      const wanted = { queue: { ns: 'plain', name: 'q' }, element: newElement(fields), id: 'i' };
      return documentsOf(HOST, wanted, NOW)[0]?.at.getTime();
    };
    assert.equal(at({}), NOW);
    assert.equal(at({ delayMs: 0.25 }), NOW + 1);
    assert.equal(at({ delayMs: 5, matureAt: 7 }), 7);
    assert.equal(at({ matureAt: Date.UTC(4999, 11, 31) }), Date.UTC(4999, 11, 31));
  });

  it('keeps the moment of its insertion only where its namespace has a retention', () => {
    const element = newElement({});
    const bornIn = (ns: string) =>
      documentsOf(HOST, { queue: { ns, name: 'q' }, element, id: 'i' }, NOW)[0]?.born;
    assert.equal(bornIn('plain'), undefined);
    assert.deepEqual(bornIn('kept'), new Date(NOW));
  });

  it('hands out a body of its own, not a part of a whole answer', () => {
    const content = contentFields(newElement({ body: 'abc' }));
    const whole = Buffer.from('xxabcxx');
    const body = new Binary(whole.subarray(2, 5));
    const document = {
      ...blank('i', { ns: 'n', name: 'q' }, '', 'o'),
      ...content,
      body,
      at: new Date(0),
      tries: 0,
    };
    const { body: copy } = delivery(document, null);
    whole.fill('-');
    assert.equal(Buffer.from(copy).toString(), 'abc');
  });
});

describe('Names in MongoDB', () => {
  it('are ids that sort in the order in which they were made, and are never made twice', () => {
    const ids = new Ids();
    const moments = [5, NOW, NOW, NOW - 60_000, NOW, NOW + 1, Date.UTC(2100, 0, 1)];
    const made = moments.flatMap((now) => [ids.next(now), ids.next(now)]);
    assert.deepEqual([...made].sort(), made);
    assert.equal(new Set(made).size, made.length);
    for (const id of made) assert.match(id, /^[0-9a-z]{11}-[0-9a-z]{6}$/);
  });

  it('differ between nodes', () => {
    assert.notEqual(new Ids().next(NOW), new Ids().next(NOW));
    assert.notEqual(new Ops().next(), new Ops().next());
  });

  it('are tokens that fit into a URL', () => {
    const ops = new Ops();
    const made = Array.from({ length: 5000 }, () => ops.next());
    assert.equal(new Set(made).size, made.length);
    for (const op of made) assert.match(op, /^[0-9a-z]{1,32}$/);
  });

  it('never stand for two queues, groups or keys', () => {
    assert.notEqual(queueText({ ns: 'a', name: 'b/c' }), queueText({ ns: 'a/b', name: 'c' }));
    assert.notEqual(keyId({ ns: 'a', name: 'b' }, 'c'), keyId({ ns: 'a', name: 'bc' }, ''));
    assert.equal(keyId({ ns: 'a', name: 'b' }, 'k'.repeat(10_000)).length, 43);
    assert.equal(deliveryId('i', ''), 'i');
    assert.equal(deliveryId('i', 'a/b'), 'i/a/b');
  });
});
