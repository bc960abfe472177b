import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { elementPart, writeMany } from '../../src/http/written-elements.ts';
import { PLAIN_GROUP } from '../../src/model/element.ts';

describe('An element as a part of multipart/mixed', () => {
  it('has the headers of a get and the bytes of the body', () => {
    const part = elementPart(
      'B',
      {
        id: 'e1',
        group: PLAIN_GROUP,
        tries: 2,
        matureAt: 0,
        body: Buffer.from([0, 255, 13, 10]),
        contentType: null,
        contentEncoding: 'gzip',
        headers: ['a', 'é'],
        lease: { token: 't', until: 1000 },
      },
      ['x-ks-queue', 'q'],
    );
    assert.equal(
      part.toString('latin1'),
      '--B\r\nx-ks-queue: q\r\ncontent-type: application/octet-stream\r\ncontent-length: 4\r\ncontent-encoding: gzip\r\n' +
        'x-ks-id: e1\r\nx-ks-tries: 2\r\nx-ks-mature: 1970-01-01T00:00:00.000Z\r\nx-ks-lease: t\r\n' +
        'x-ks-lease-until: 1970-01-01T00:00:01.000Z\r\nx-ks-hdr-a: é\r\n\r\n\0ÿ\r\n\r\n',
    );
  });

  it('is separated by a boundary that is new each time and valid by RFC 2046', () => {
    const format = { isMultipart: true, asJson: false, namesSource: false };
    const [a, b] = [writeMany([], format), writeMany([], format)];
    assert.notEqual(a.contentType, b.contentType);
    const [, boundary = ''] =
      /^multipart\/mixed; boundary="([0-9A-Za-z_-]{1,70})"$/.exec(a.contentType) ?? [];
    assert.equal([...a.pieces].join(''), `--${boundary}--\r\n`);
  });
});
