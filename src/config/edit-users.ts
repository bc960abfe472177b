import { readFile } from 'node:fs/promises';
import { isDeepStrictEqual } from 'node:util';
import { type Document, isMap, isScalar, parseDocument, Scalar } from 'yaml';
import { rewriteFile } from '../util/files.ts';
import { isRecord } from '../util/is-record.ts';
import type { Tree } from './load.ts';

/** Members of a user to set; undefined: to take away. What is not named stays. */
export type UserMembers = Readonly<
  Partial<Record<'password' | 'rights' | 'maskBodies', string | object | true | undefined>>
>;

/** A configuration file whose users cannot be changed by a program; the message says why. */
export class UsersNotEditable extends Error {}

const USERS = ['http', 'users'] as const;

/** That was checked when the configuration was loaded, in less time than the parser takes. */
const KEYS_ARE_UNIQUE = { uniqueKeys: false } as const;

/**
 * The users that stand in a configuration file, as they stand there.
 * @throws UsersNotEditable, or Error of the system
 */
export async function usersInFile(file: string): Promise<Tree> {
  const { document } = await readDocument(file);
  return usersOf(document.toJS()) ?? {};
}

/**
 * Changes or, with null, removes one user of a configuration file, or adds it. Everything else in the file stays,
 * comments included, and so do its mode and its owner.
 * @throws UsersNotEditable, or Error of the system
 */
export async function editUser(file: string, name: string, members: UserMembers | null): Promise<void> {
  const { text, document } = await readDocument(file);
  const wanted = withUser(document.toJS(), name, members);
  let content = `${JSON.stringify(wanted, null, 2)}\n`;
  if (!isJson(text)) {
    editDocument(document, name, usersOf(wanted)?.[name]);
    content = document.toString({ lineWidth: 0 });
  }
  // An anchor may be used elsewhere: what would change more than the user does not reach the file.
  if (!isDeepStrictEqual(parseDocument(content, KEYS_ARE_UNIQUE).toJS(), wanted)) {
    throw new UsersNotEditable(
      `User ${name} shares a part of ${file} with something else; change it by hand.`,
    );
  }
  await rewriteFile(file, content);
}

async function readDocument(file: string): Promise<{ text: string; document: Document.Parsed }> {
  const text = await readFile(file, 'utf8');
  const document = parseDocument(text, KEYS_ARE_UNIQUE);
  for (const path of [['http'], USERS]) {
    const node = document.getIn(path, true);
    if (node === undefined || isMap(node) || (isScalar(node) && node.value === null)) continue;
    throw new UsersNotEditable(
      `${path.join('.')} in ${file} is a reference to another part; change it by hand.`,
    );
  }
  return { text, document };
}

/** @param wanted undefined: to remove it */
function editDocument(document: Document.Parsed, name: string, wanted: unknown): void {
  const path = [...USERS, name];
  if (wanted === undefined) {
    document.deleteIn(path);
    return;
  }
  for (const parent of [['http'], USERS]) {
    if (!isMap(document.getIn(parent, true))) document.setIn(parent, document.createNode({}));
  }
  const user = document.getIn(path, true);
  if (isScalar(user) && typeof wanted === 'string') {
    user.value = wanted;
    user.type = Scalar.QUOTE_SINGLE;
    return;
  }
  if (!isMap(user) || !isRecord(wanted)) {
    document.setIn(path, isRecord(wanted) ? userNode(document, wanted) : wanted);
    return;
  }
  // Members that stay keep their comments.
  const before = user.toJS(document) as Tree;
  for (const [member, node] of userEntries(document, wanted)) {
    if (!isDeepStrictEqual(before[member], wanted[member])) user.set(member, node);
  }
  for (const member of Object.keys(before)) if (!Object.hasOwn(wanted, member)) user.delete(member);
}

function userNode(document: Document.Parsed, user: Tree): unknown {
  return document.createNode(Object.fromEntries(userEntries(document, user)));
}

/** A hash stands between single quotes, as people are advised to write it. */
function userEntries(document: Document.Parsed, user: Tree): [string, unknown][] {
  return Object.entries(user).map(([member, value]) => {
    const node = document.createNode(value);
    if (isScalar(node) && member === 'password') node.type = Scalar.QUOTE_SINGLE;
    return [member, node];
  });
}

function withUser(content: Tree | null, name: string, members: UserMembers | null): Tree {
  const http = isRecord(content?.http) ? content.http : {};
  const { [name]: user, ...others } = usersOf(content) ?? {};
  if (members === null) return { ...content, http: { ...http, users: others } };
  const before = typeof user === 'string' ? { password: user } : isRecord(user) ? user : {};
  const entries = Object.entries({ ...before, ...members }).filter(([, value]) => value !== undefined);
  const isShort = typeof user === 'string' && entries.length === 1;
  const after = isShort ? members.password : Object.fromEntries(entries);
  return { ...content, http: { ...http, users: { ...usersOf(content), [name]: after } } };
}

function usersOf(content: unknown): Tree | undefined {
  const http = isRecord(content) ? content.http : undefined;
  const users = isRecord(http) ? http.users : undefined;
  return isRecord(users) ? users : undefined;
}

/** JSON is YAML, but what the library would write into it is not JSON. */
function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}
