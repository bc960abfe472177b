import assert from 'node:assert/strict';
import { globSync, readFileSync } from 'node:fs';
import { stripTypeScriptTypes } from 'node:module';
import path from 'node:path';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { type AnyNode, parse } from 'acorn';
import { visitAll } from '../support/syntax-tree.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const PAGE = readFileSync(path.join(ROOT, 'docs/operate/log-events.md'), 'utf8');

/** Code that runs in browsers or in the shell of a user has no log. */
const NO_SERVER = /^src\/(console|cli|client)\//;
const LEVELS = new Set(['debug', 'info', 'warn', 'error', 'fatal']);

/**
 * The number of calls, by file, that log a message which they received. These messages are found where they are
 * written, or have no fixed text: warnings about the configuration, output of libraries.
 */
const FORWARDED: Readonly<Record<string, number>> = {
  'src/app/log.ts': 1,
  'src/app/serve.ts': 3,
  'src/app/server.ts': 2,
  'src/engines/sqlite/client.ts': 2,
  'src/session/client-session.ts': 1,
};

/** A message that is passed to the function that logs it. */
const AS_PARAMETER = {
  file: 'src/engines/sqlite/storage.ts',
  message: 'elements of a take whose reply came too late could not be returned to their queue',
  level: 'warn',
};

/** How one message is logged. */
interface Logged {
  readonly levels: Set<string>;
  /** The names of its events, '' for a line without one; empty if its fields are computed elsewhere. */
  readonly events: Set<string>;
}

/** All log messages, the names of all events, and the number of calls, by file, without a message of their own. */
function readSource(): {
  readonly messages: Map<string, Logged>;
  readonly events: Set<string>;
  readonly forwarded: Record<string, number>;
} {
  const messages = new Map<string, Logged>([
    [AS_PARAMETER.message, { levels: new Set([AS_PARAMETER.level]), events: new Set(['']) }],
  ]);
  const events = new Set<string>();
  const forwarded: Record<string, number> = {};
  for (const file of globSync('src/**/*.ts', { cwd: ROOT })) {
    if (NO_SERVER.test(file)) continue;
    const source = stripTypeScriptTypes(readFileSync(path.join(ROOT, file), 'utf8'));
    visitAll(parse(source, { ecmaVersion: 'latest', sourceType: 'module' }), (node) => {
      const event = eventOf(node);
      if (event !== null) events.add(event);
      const call = logCall(node, source);
      if (call === null) return;
      const found = stringsOf(call.message);
      if (found.length === 0) forwarded[file] = (forwarded[file] ?? 0) + 1;
      for (const message of found) {
        const logged = messages.get(message) ?? { levels: new Set(), events: new Set() };
        messages.set(message, logged);
        for (const level of call.levels) logged.levels.add(level);
        if (call.fields.type === 'ObjectExpression')
          logged.events.add(call.fields.properties.map(eventOf).find((name) => name !== null) ?? '');
      }
    });
  }
  return { messages, events, forwarded };
}

/** The name in `event: 'name'`. */
function eventOf(node: AnyNode): string | null {
  if (node.type !== 'Property' || node.key.type !== 'Identifier' || node.key.name !== 'event') return null;
  return stringsOf(node.value)[0] ?? null;
}

interface LogCall {
  readonly levels: readonly string[];
  readonly fields: AnyNode;
  readonly message: AnyNode;
}

/**
 * A call such as `log.warn(fields, message)`, `warn(fields, message)`, `this.#warn(fields, message)` or
 * `log[isKnown ? 'info' : 'warn'](fields, message)`.
 */
function logCall(node: AnyNode, source: string): LogCall | null {
  if (node.type !== 'CallExpression') return null;
  const { callee, arguments: [fields, message] = [] } = node;
  if (fields === undefined || message === undefined) return null;
  if (callee.type === 'Identifier')
    return callee.name === 'warn' ? { levels: ['warn'], fields, message } : null;
  if (callee.type !== 'MemberExpression') return null;
  const { object, property, computed } = callee;
  const isLog = /log(ger)?$/i.test(source.slice(object.start, object.end));
  if (computed) return isLog ? { levels: stringsOf(property), fields, message } : null;
  if (property.type === 'PrivateIdentifier')
    return property.name === 'warn' ? { levels: ['warn'], fields, message } : null;
  if (property.type !== 'Identifier' || !LEVELS.has(property.name)) return null;
  return isLog || property.name === 'warn' ? { levels: [property.name], fields, message } : null;
}

/** The strings that an expression can evaluate to, with `…` for interpolated parts; none if it is not a literal. */
function stringsOf(node: AnyNode): string[] {
  if (node.type === 'Literal') return typeof node.value === 'string' ? [node.value] : [];
  if (node.type === 'TemplateLiteral') return [node.quasis.map(({ value }) => value.cooked).join('…')];
  if (node.type !== 'ConditionalExpression') return [];
  return [...stringsOf(node.consequent), ...stringsOf(node.alternate)];
}

/** The cells of each row that begins with a message. */
function rowsOf(page: string): string[][] {
  return page
    .split('\n')
    .filter((line) => line.startsWith('| `'))
    .map((line) => line.slice(2, -2).split(' | '));
}

describe('docs/operate/log-events.md', () => {
  const { messages, events, forwarded } = readSource();
  const rows = rowsOf(PAGE);
  const unquoted = (cell = ''): string => cell.replaceAll('`', '');

  it('has each message that the server logs, once, and no other', () => {
    assert.ok(messages.size > 90);
    assert.deepEqual(rows.map(([message]) => unquoted(message)).sort(), [...messages.keys()].sort());
  });

  it('has the level and the event of each message', () => {
    for (const [message = '', level = '', event] of rows) {
      const logged = messages.get(unquoted(message));
      assert.ok(logged !== undefined, message);
      // Levels and fields that are computed elsewhere are unknown here.
      if (logged.levels.size > 0) assert.deepEqual(new Set(level.split(', ')), logged.levels, message);
      if (logged.events.size > 0) assert.deepEqual(new Set([unquoted(event).trim()]), logged.events, message);
    }
  });

  it('has each name of an event, and no other', () => {
    const named = rows.map(([, , event]) => unquoted(event).trim()).filter((event) => event !== '');
    assert.deepEqual([...new Set(named)].sort(), [...events].sort());
  });

  it('explains each message and says what to do', () => {
    for (const [message, , , meaning = '', action = ''] of rows)
      assert.match(`${meaning}|${action}`, /\.\|.*\.$/, message);
  });

  it('is compared with all log calls except the listed ones, which forward a message', () => {
    assert.deepEqual(forwarded, FORWARDED);
    const source = readFileSync(path.join(ROOT, AS_PARAMETER.file), 'utf8');
    assert.ok(source.includes(`'${AS_PARAMETER.message}'`));
  });
});
