import assert from 'node:assert/strict';
import { chown, mkdir, mkdtemp, readdir, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { readAccounts } from '../../src/access/account.ts';
import { newAdministrator, UsersFile } from '../../src/app/users.ts';
import { ConfigError } from '../../src/config/errors.ts';

describe('The users file', () => {
  let folder: string;
  let file: UsersFile;

  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), 'quayside-users-'));
    file = new UsersFile(join(folder, 'data', 'users.json'));
  });

  afterEach(() => rm(folder, { recursive: true }));

  it('is read as null if it does not exist', async () => {
    assert.equal(await file.read(), null);
  });

  it('stores the hash of a new administrator and leaves no temporary file', async () => {
    const { definition, password } = await newAdministrator();
    await file.write([definition]);
    assert.deepEqual(await file.read(), [definition]);
    assert.ok(!definition.password.includes(password));
    assert.doesNotThrow(() => readAccounts([definition], []));
    assert.deepEqual(await readdir(join(folder, 'data')), ['users.json']);
  });

  it('is replaced as a whole', async () => {
    const first = await newAdministrator();
    const second = await newAdministrator();
    assert.notEqual(first.password, second.password);
    await file.write([first.definition]);
    await file.write([second.definition]);
    assert.deepEqual(await file.read(), [second.definition]);
  });

  describe('written by root', { skip: process.getuid?.() !== 0 && 'these tests need root' }, () => {
    const [SERVER, GROUP, OTHER_USER] = [12_345, 12_346, 65_534];
    const ownerOf = async (): Promise<number[]> => {
      const { uid, gid } = await stat(file.path);
      return [uid, gid];
    };

    it('belongs to the owner of the folder, and keeps its owner when it is replaced', async () => {
      await mkdir(join(folder, 'data'));
      await chown(join(folder, 'data'), SERVER, GROUP);
      await file.write([(await newAdministrator()).definition]);
      assert.deepEqual(await ownerOf(), [SERVER, GROUP]);
      await chown(file.path, OTHER_USER, OTHER_USER);
      await file.write([(await newAdministrator()).definition]);
      assert.deepEqual(await ownerOf(), [OTHER_USER, OTHER_USER]);
      assert.equal((await stat(file.path)).mode & 0o777, 0o600);
    });

    it('is reported with a hint about permissions to a user who may not read it', async () => {
      await file.write([(await newAdministrator()).definition]);
      process.seteuid?.(OTHER_USER);
      try {
        await assert.rejects(file.read(), { message: /EACCES\. Let the user .* read it\.$/ });
      } finally {
        process.seteuid?.(0);
      }
    });
  });

  it('is rejected if it is not a map of users', async () => {
    await file.write([]);
    for (const text of [
      '',
      'x',
      '[]',
      '{}',
      'null',
      '5',
      '{"a": 5}',
      '{"a": null}',
      '{"a": {"password": 5}}',
    ]) {
      await writeFile(file.path, text);
      await assert.rejects(file.read(), ConfigError, text);
    }
  });

  it('is rejected if it is not in UTF-8, which would change names and passwords; a byte order mark is removed', async () => {
    const definition = { name: 'j\u00f6rg', password: 'secret', rights: null };
    const text = JSON.stringify({ [definition.name]: { password: definition.password } });
    await file.write([]);
    await writeFile(file.path, Buffer.from(text, 'latin1'));
    await assert.rejects(file.read(), { message: /not in UTF-8\. Save it in UTF-8\.$/ });
    await writeFile(file.path, `\ufeff${text}`);
    assert.deepEqual(await file.read(), [definition]);
  });
});
