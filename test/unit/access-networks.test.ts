import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { NetworkError, Networks } from '../../src/access/networks.ts';

describe('A set of networks', () => {
  const cases: [entries: string[], address: string, isIn: boolean][] = [
    [['10.0.0.0/8'], '10.255.0.1', true],
    [['10.0.0.0/8'], '11.0.0.1', false],
    [['10.0.0.0/8'], '::ffff:10.1.2.3', true],
    [['10.0.0.7'], '10.0.0.7', true],
    [['10.0.0.7'], '10.0.0.8', false],
    [['0.0.0.0/0'], '198.51.100.1', true],
    [['0.0.0.0/0'], '2001:db8::1', false],
    [['fd00::/8'], 'fd12:3456::1', true],
    [['fd00::/8'], 'fe80::1%eth0', false],
    [['fe80::/10'], 'fe80::1%eth0', true],
    [['::1'], '0:0:0:0:0:0:0:1', true],
    [['192.0.2.0/24', 'unix:'], '', true],
    [['192.0.2.0/24'], '', false],
    [['192.0.2.0/24'], 'proxy.example', false],
    [[], '127.0.0.1', false],
  ];
  for (const [entries, address, isIn] of cases) {
    it(`${JSON.stringify(entries)} ${isIn ? 'has' : 'does not have'} ${JSON.stringify(address)}`, () => {
      assert.equal(new Networks(entries).has(address), isIn);
    });
  }

  for (const entry of [
    '',
    'localhost',
    '10.0.0.0/33',
    '::/129',
    '10.0.0/8',
    '10.0.0.0/',
    '10.0.0.0/8/8',
    '/8',
  ]) {
    it(`rejects ${JSON.stringify(entry)} and names it with its index`, () => {
      assert.throws(
        () => new Networks(['127.0.0.1', entry]),
        (error) => {
          assert.ok(error instanceof NetworkError);
          assert.equal(error.index, 1);
          assert.equal(error.message, `${JSON.stringify(entry)} is not a network`);
          return true;
        },
      );
    });
  }
});
