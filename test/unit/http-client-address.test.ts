import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { Networks } from '../../src/access/networks.ts';
import { clientAddress } from '../../src/http/forwarded.ts';

const TRUSTED = new Networks(['10.0.0.0/8', 'fd00::/8', 'unix:']);
const PROXY = '10.0.0.1';

/** A header of the given length that ends with the entry. */
const padded = (entry: string, length: number): string => `,${entry}`.padStart(length, 'x');

describe('The address of a request', () => {
  const cases: [
    what: string,
    peer: string,
    forwardedFor: string | null,
    forwarded: string | null,
    is: string,
  ][] = [
    ['is the peer without headers', PROXY, null, null, PROXY],
    [
      'is an untrusted peer, whatever its headers say',
      '192.0.2.1',
      '198.51.100.1',
      'for=198.51.100.1',
      '192.0.2.1',
    ],
    ['is what a trusted proxy appended', PROXY, '198.51.100.1', null, '198.51.100.1'],
    ['is the last untrusted entry', PROXY, '203.0.113.9, 198.51.100.1, 10.2.3.4', null, '198.51.100.1'],
    ['is the first entry if all are trusted', PROXY, '10.9.9.9, 10.2.3.4', null, '10.9.9.9'],
    ['is taken from the headers on a Unix socket', '', '198.51.100.1', null, '198.51.100.1'],
    ['does not include the port', PROXY, '198.51.100.1:4711', null, '198.51.100.1'],
    ['may be IPv6', PROXY, '2001:db8::7', null, '2001:db8::7'],
    ['may be IPv6 in brackets', PROXY, '[2001:db8::7]:443', null, '2001:db8::7'],
    [
      'is not searched beyond an entry that is not an address',
      PROXY,
      '198.51.100.1, unknown, 10.2.3.4',
      null,
      '10.2.3.4',
    ],
    ['is not searched beyond an empty entry', PROXY, '198.51.100.1,', null, PROXY],
    ['is taken from Forwarded', PROXY, null, 'for=198.51.100.1;proto=https;by=10.0.0.1', '198.51.100.1'],
    ['is taken from Forwarded in quotes', PROXY, null, 'by=x; For="[2001:db8::7]:443"', '2001:db8::7'],
    [
      'is the last untrusted entry of Forwarded',
      PROXY,
      null,
      'for=203.0.113.9, for=198.51.100.1, for=10.1.1.1',
      '198.51.100.1',
    ],
    [
      'is not fooled by a comma in quotes',
      PROXY,
      null,
      'for="_a, for=203.0.113.9", for=198.51.100.1',
      '198.51.100.1',
    ],
    ['is not searched beyond an obfuscated name', PROXY, null, 'for=198.51.100.1, for=_hidden', PROXY],
    ['may be in both headers', PROXY, '198.51.100.1', 'for=198.51.100.1', '198.51.100.1'],
    [
      'is not hidden by a quote without an end',
      PROXY,
      null,
      'for=203.0.113.9, for="_a, for=198.51.100.1',
      '198.51.100.1',
    ],
    ['is not hidden by an escaped quote', PROXY, null, 'for="_\\"a, x", for=198.51.100.1', '198.51.100.1'],
    ['is taken from a header of 1 KB', PROXY, padded('198.51.100.1', 1024), null, '198.51.100.1'],
    ['is the peer if X-Forwarded-For is longer than 1 KB', PROXY, padded('198.51.100.1', 1025), null, PROXY],
    [
      'is the peer if Forwarded is longer than 1 KB',
      PROXY,
      '198.51.100.1',
      padded('for=198.51.100.1', 1025),
      PROXY,
    ],
    ['is the peer if Forwarded is 1 MB of open quotes', PROXY, null, '"\\'.repeat(500_000), PROXY],
    ['is the peer if Forwarded is 1 MB without a comma', PROXY, null, 'a'.repeat(1_000_000), PROXY],
    ['is the peer if the headers differ', PROXY, '203.0.113.9', 'for=198.51.100.1', PROXY],
  ];
  for (const [title, peer, forwardedFor, forwarded, expected] of cases) {
    it(title, () => {
      assert.equal(clientAddress(peer, { forwardedFor, forwarded }, TRUSTED), expected);
    });
  }
});
