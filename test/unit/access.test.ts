import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { readAccounts, type UserDefinition, UserDefinitionError } from '../../src/access/account.ts';
import { addressBlock } from '../../src/access/networks.ts';
import { hashPassword } from '../../src/access/password.ts';
import { readBasic } from '../../src/access/password-authenticator.ts';
import type { User } from '../../src/access/user.ts';
import { RIGHTS } from '../../src/model/rights.ts';

const NAMESPACES = ['N', 'jobs', 'events'];

function userWith(rights: UserDefinition['rights'], maskBodies = false): User {
  const account = readAccounts([{ name: 'u', password: 'p', rights, maskBodies }], NAMESPACES).get('u');
  assert.ok(account);
  return account.user;
}

describe('Rights of a user', () => {
  it('are all rights in all namespaces if none are configured', () => {
    const user = userWith(null);
    for (const right of RIGHTS) assert.equal(user.may(right, 'N'), true);
    assert.equal(user.maySee('N'), true);
  });

  it('are none if the map of rights is empty', () => {
    const user = userWith({});
    for (const right of RIGHTS) assert.equal(user.may(right, 'N'), false);
    assert.equal(user.maySee('N'), false);
  });

  it('are those listed for the namespace, and none elsewhere', () => {
    const user = userWith({ N: ['read', 'write'] });
    assert.deepEqual(
      RIGHTS.filter((right) => user.may(right, 'N')),
      ['read', 'write', 'browse'],
    );
    assert.equal(user.maySee('jobs'), false);
  });

  it('come from * in a namespace that has no list of its own', () => {
    const user = userWith({ '*': ['read', 'write'], jobs: ['manage'], events: [] });
    assert.deepEqual(
      NAMESPACES.map((ns) => RIGHTS.filter((right) => user.may(right, ns))),
      [['read', 'write', 'browse'], ['manage'], []],
    );
    assert.equal(user.maySee('events'), false);
  });

  it('to read include the right to browse, but not the other way round', () => {
    const user = userWith({ N: ['read'], jobs: ['browse'] });
    assert.deepEqual([user.may('read', 'N'), user.may('browse', 'N')], [true, true]);
    assert.deepEqual([user.may('read', 'jobs'), user.may('browse', 'jobs')], [false, true]);
  });

  it('to browse include bodies, unless maskBodies is set and the user may not read', () => {
    const rights = { N: ['read'], jobs: ['browse'], events: ['manage'] };
    const seen = (user: User) => NAMESPACES.map((ns) => user.maySeeBodies(ns));
    assert.deepEqual(seen(userWith(rights)), [true, true, false]);
    assert.deepEqual(seen(userWith(rights, true)), [true, false, false]);
  });

  it('are none in a namespace that is named like a member of Object.prototype', () => {
    const user = userWith({ N: ['read'] });
    for (const name of ['constructor', '__proto__', 'toString']) assert.equal(user.maySee(name), false);
  });
});

describe('A user definition is rejected', () => {
  const cases: [why: string, definition: Partial<UserDefinition>, field: string, message: RegExp][] = [
    ['for a right that does not exist', { rights: { N: ['reed'] } }, 'rights.N', /no right "reed"/],
    ['for a namespace that does not exist', { rights: { M: ['read'] } }, 'rights.M', /no such namespace/],
    [
      'for maskBodies without rights',
      { rights: null, maskBodies: true },
      'maskBodies',
      /may read all bodies/,
    ],
    ['for a name with a colon', { name: 'a:b' }, '', /Basic/],
    ['for an empty name', { name: '' }, '', /Basic/],
    ['for a name with a control character', { name: 'ann\n' }, '', /Basic/],
    ['for a name of more than 256 bytes', { name: 'é'.repeat(129) }, '', /Basic/],
    ['for a name that is not Unicode', { name: '\ud800' }, '', /Basic/],
    ['for a password with a control character', { password: 'a\tb' }, 'password', /control character/],
    ['for an empty password', { password: '' }, 'password', /empty/],
    ['for a password of more than 256 bytes', { password: 'é'.repeat(129) }, 'password', /256 bytes/],
    ['for a hash of another kind', { password: '$2b$10$abcdefgh' }, 'password', /argon2id/],
    ['for argon2i', { password: phc('m=19456,t=2,p=1').replace('2id', '2i') }, 'password', /argon2id/],
    ['for too little memory', { password: phc('m=19455,t=2,p=1') }, 'password', /too weak/],
    ['for too few passes', { password: phc('m=19456,t=1,p=1') }, 'password', /too weak/],
    ['for a parallelism of zero', { password: phc('m=19456,t=2,p=0') }, 'password', /too weak/],
    ['for a hash that would cost too much', { password: phc('m=9999999,t=2,p=1') }, 'password', /too much/],
    ['for a salt that is too short', { password: phc('m=19456,t=2,p=1', 4) }, 'password', /salt of 4 bytes/],
    ['for a hash that is too short', { password: phc('m=19456,t=2,p=1', 16, 8) }, 'password', /hash of 8/],
    ['for padded base64', { password: `${phc('m=19456,t=2,p=1')}=` }, 'password', /argon2id/],
    [
      'for base64 with loose bits',
      { password: `${phc('m=19456,t=2,p=1').slice(0, -1)}1` },
      'password',
      /base64/,
    ],
    ['for parameters in another order', { password: phc('t=2,m=19456,p=1') }, 'password', /argon2id/],
  ];
  for (const [why, definition, field, message] of cases) {
    it(why, () => {
      const whole = { name: 'u', password: 'CANARY', rights: null, ...definition };
      assert.throws(
        () => readAccounts([whole], NAMESPACES),
        (error) => {
          assert.ok(error instanceof UserDefinitionError);
          assert.equal(error.field.join('.'), field);
          assert.match(error.message, message);
          assert.notEqual(error.hint, '');
          if (whole.password !== '') assert.ok(!`${error.message} ${error.hint}`.includes(whole.password));
          return true;
        },
      );
    });
  }

  it('but not for less memory with more passes', () => {
    assert.doesNotThrow(() =>
      readAccounts([{ name: 'u', password: phc('m=7168,t=5,p=1'), rights: null }], []),
    );
  });
});

describe('hashPassword', () => {
  it('returns a PHC string with the default parameters and a new salt each time', async () => {
    const [first, second] = await Promise.all([hashPassword('secret'), hashPassword('secret')]);
    assert.match(first, /^\$argon2id\$v=19\$m=19456,t=2,p=1\$[\w+/]{22}\$[\w+/]{43}$/);
    assert.notEqual(first, second);
  });

  it('rejects an empty password, one of more than 256 bytes, and one with a control character', async () => {
    await assert.rejects(hashPassword(''), /empty/);
    await assert.rejects(hashPassword('x'.repeat(257)), /256 bytes/);
    await assert.rejects(hashPassword('a\tb'), /has a control character/);
  });
});

describe('readBasic', () => {
  it('reads any name without a colon and any password, in UTF-8', () => {
    const part = fc.string({ unit: 'grapheme', maxLength: 20 }).filter((text) => !/\p{Cc}/u.test(text));
    fc.assert(
      fc.property(part, part, (name, password) => {
        fc.pre(name !== '' && !name.includes(':'));
        assert.deepEqual(readBasic(basic(`${name}:${password}`)), { name, password });
      }),
    );
  });

  it('accepts the scheme in any letter case and keeps colons in the password', () => {
    assert.deepEqual(readBasic(basic('u:a:b').replace('Basic', 'bAsIc')), { name: 'u', password: 'a:b' });
  });

  const refused: [why: string, header: string][] = [
    ['another scheme', `Bearer ${Buffer.from('u:p').toString('base64')}`],
    ['no credentials', 'Basic '],
    ['no colon', basic('up')],
    ['no name', basic(':p')],
    ['base64 without its padding', 'Basic dTpwMQ'],
    ['base64 with loose bits', 'Basic dTpwMR=='],
    ['base64url', `Basic ${Buffer.from('u:\u00ff\u00fe?').toString('base64url')}`],
    ['something after the credentials', `${basic('u:p1')} x`],
    ['bytes that are not UTF-8', `Basic ${Buffer.from([0x75, 0x3a, 0xff]).toString('base64')}`],
    ['a control character', basic('u:p\n')],
    ['more than 1 KiB', basic(`u:${'p'.repeat(800)}`)],
    ['a password of more than 256 bytes', basic(`u:${'p'.repeat(257)}`)],
  ];
  for (const [why, header] of refused) it(`rejects ${why}`, () => assert.equal(readBasic(header), null));

  it('never throws, whatever the header', () => {
    fc.assert(fc.property(fc.string(), (text) => void readBasic(`Basic ${text}`)));
  });
});

describe('addressBlock', () => {
  const cases: [address: string, block: string][] = [
    ['192.0.2.77', '192.0.2.0/24'],
    ['::ffff:192.0.2.77', '192.0.2.0/24'],
    ['2001:db8:1:2:3:4:5:6', '2001:db8:1:2::/64'],
    ['2001:0DB8:0001::5', '2001:db8:1:0::/64'],
    ['::1', '0:0:0:0::/64'],
    ['fe80::1%eth0', 'fe80:0:0:0::/64'],
    ['64:ff9b::192.0.2.1', '64:ff9b:0:0::/64'],
    ['1:2:3::', '1:2:3:0::/64'],
    ['/run/quayside.sock', '/run/quayside.sock'],
  ];
  for (const [address, block] of cases) {
    it(`of ${address} is ${block}`, () => assert.equal(addressBlock(address), block));
  }
});

function basic(credentials: string): string {
  return `Basic ${Buffer.from(credentials).toString('base64')}`;
}

function phc(cost: string, saltBytes = 16, hashBytes = 32): string {
  const part = (bytes: number): string => Buffer.alloc(bytes, 7).toString('base64').replace(/=+$/, '');
  return `$argon2id$v=19$${cost}$${part(saltBytes)}$${part(hashBytes)}`;
}
