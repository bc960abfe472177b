import { readFile } from 'node:fs/promises';
import { isDeepStrictEqual } from 'node:util';
import { type Document, isMap, isScalar, parseDocument, Scalar } from 'yaml';
import { rewriteFile } from '../util/files.ts';
import { isRecord } from '../util/is-record.ts';
import { parsedJson } from '../util/parsed-json.ts';
import type { Tree } from './declared.ts';

/** Members to set on a user; undefined removes a member, and an absent one remains unchanged. */
export type UserMembers = Readonly<
  Partial<Record<'password' | 'rights' | 'maskBodies', string | object | true | undefined>>
>;

/** The users of a configuration file cannot be edited automatically; the message gives the reason. */
export class UsersNotEditable extends Error {}

const USERS = ['http', 'users'] as const;

/** Loading the configuration already checks for duplicate keys, faster than the parser does. */
const KEYS_ARE_UNIQUE = { uniqueKeys: false } as const;

/**
 * The users in a configuration file, exactly as written there.
 * @throws UsersNotEditable, or the error of the file system
 */
export async function usersInFile(file: string): Promise<Tree> {
  const { document } = await readDocument(file);
  return usersOf(document.toJS()) ?? {};
}

/**
 * Adds or changes one user in a configuration file, or removes it if `members` is null. Preserves everything else,
 * including comments, line ends and the file's mode and owner.
 * @throws UsersNotEditable, or the error of the file system
 */
export async function editUser(file: string, name: string, members: UserMembers | null): Promise<void> {
  const { text, document } = await readDocument(file);
  const edited = withUser(document.toJS(), name, members);
  let content: string | null = `${JSON.stringify(edited, null, 2)}\n`;
  // JSON files are rewritten as JSON: the YAML library would turn them into YAML.
  if (parsedJson(text) === undefined) {
    editDocument(document, name, usersOf(edited)?.[name]);
    content = yamlOf(document);
  }
  if (text.includes('\r\n')) content = content?.replaceAll('\n', '\r\n') ?? null;
  // The user may share a YAML anchor with other parts: do not write the file if the edit would change more than the
  // user.
  if (content === null || !isDeepStrictEqual(parseDocument(content, KEYS_ARE_UNIQUE).toJS(), edited)) {
    throw new UsersNotEditable(
      `User ${name} shares a part of ${file} with something else; change it by hand.`,
    );
  }
  await rewriteFile(file, content);
}

/** The text of a document; null if an alias refers to an anchor that the edit removed. */
function yamlOf(document: Document.Parsed): string | null {
  try {
    return document.toString({ lineWidth: 0 });
  } catch {
    return null;
  }
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

/** @param wanted the new value of the user; undefined removes it */
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
  // Set only the changed members, so that the others keep their comments.
  const before = user.toJS(document) as Tree;
  for (const [member, node] of userEntries(document, wanted)) {
    if (!isDeepStrictEqual(before[member], wanted[member])) user.set(member, node);
  }
  for (const member of Object.keys(before)) if (!Object.hasOwn(wanted, member)) user.delete(member);
}

function userNode(document: Document.Parsed, user: Tree): unknown {
  return document.createNode(Object.fromEntries(userEntries(document, user)));
}

/** Password hashes are written in single quotes, as the documentation recommends. */
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
  const isPasswordOnly = typeof user === 'string' && entries.length === 1;
  const after = isPasswordOnly ? members.password : Object.fromEntries(entries);
  return { ...content, http: { ...http, users: { ...usersOf(content), [name]: after } } };
}

function usersOf(content: unknown): Tree | undefined {
  const http = isRecord(content) ? content.http : undefined;
  const users = isRecord(http) ? http.users : undefined;
  return isRecord(users) ? users : undefined;
}
