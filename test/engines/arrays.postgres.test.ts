import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import pg from 'pg';
import {
  boolArray,
  byteaArray,
  int4Array,
  int8Array,
  textArray,
} from '../../src/engines/postgres/statement.ts';
import { sharedServer } from './postgres.ts';

describe('Array parameters in PostgreSQL’s binary form', () => {
  let client: pg.Client;

  before(async () => {
    client = new pg.Client({ connectionString: (await sharedServer()).url() });
    await client.connect();
  });
  after(() => client.end());

  async function read(type: string, array: Buffer): Promise<unknown[]> {
    const { rows } = await client.query(
      `SELECT v FROM unnest($1::${type}[]) WITH ORDINALITY AS u(v, o) ORDER BY o`,
      [array],
    );
    return rows.map(({ v }) => v);
  }

  it('encode integers up to the largest that a JavaScript number holds exactly', async () => {
    const values = [
      0,
      1,
      -1,
      2 ** 31,
      -(2 ** 31) - 1,
      2 ** 32,
      2 ** 48 - 1,
      Number.MAX_SAFE_INTEGER,
      Number.MIN_SAFE_INTEGER,
    ];
    assert.deepEqual((await read('bigint', int8Array(values))).map(Number), values);
    assert.deepEqual(await read('int', int4Array([0, -1, 2 ** 31 - 1, -(2 ** 31)])), [
      0,
      -1,
      2 ** 31 - 1,
      -(2 ** 31),
    ]);
  });

  it('encode nulls at any position', async () => {
    assert.deepEqual(await read('bigint', int8Array([null, 1, null])), [null, '1', null]);
    assert.deepEqual(await read('int', int4Array([null, null])), [null, null]);
    assert.deepEqual(await read('bytea', byteaArray([null, Buffer.from('x'), null])), [
      null,
      Buffer.from('x'),
      null,
    ]);
  });

  it('encode bytes, strings and booleans', async () => {
    const bytes = [Buffer.alloc(0), Buffer.from([0, 255, 10]), Buffer.alloc(100_000, 7)];
    assert.deepEqual(await read('bytea', byteaArray(bytes)), bytes);
    const texts = ['', '{"quoted",NULL}', 'é日🙂'];
    assert.deepEqual(await read('text', textArray(texts)), texts);
    assert.deepEqual(await read('bool', boolArray([true, false])), [true, false]);
  });

  it('may be empty', async () => {
    for (const [type, array] of [
      ['int', int4Array([])],
      ['bigint', int8Array([])],
      ['bytea', byteaArray([])],
    ] as const) {
      assert.deepEqual(await read(type, array), []);
    }
  });
});
