import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, relative, resolve } from 'node:path';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('..', import.meta.url));

/**
 * The other parts of `src` and the packages that a part of `src` may import. `node:*` stands for Node's built-in
 * modules.
 */
interface Rule {
  readonly parts: readonly string[];
  /** Parts from which only types are imported. */
  readonly types?: readonly string[];
  readonly packages: readonly string[];
}

/** Concrete engines and their drivers. Engines may not import each other. */
const DRIVERS: Readonly<Record<string, string>> = {
  'engines/sqlite': 'node:sqlite',
  'engines/redis': 'ioredis',
  'engines/postgres': 'pg',
};

/** What every part may import: plain values, and utilities that are independent of Quayside. */
const BASE = ['model', 'util'];
/** What a front end may import. */
const CORE = [...BASE, 'access', 'broker', 'sandbox', 'exchange', 'operations', 'events'];

/** The allowed imports of each part. A part without a rule fails the test: add it here and justify it in the review. */
const RULES: Readonly<Record<string, Rule>> = {
  util: { parts: [], packages: ['node:*'] },
  // Hashes are functions of their arguments alone.
  model: { parts: ['util'], packages: ['node:crypto'] },
  engine: { parts: BASE, packages: ['node:fs', 'node:tls'] },
  ...Object.fromEntries(
    Object.entries(DRIVERS).map(([part, driver]) => [
      part,
      { parts: [...BASE, 'engine'], packages: ['node:*', driver] },
    ]),
  ),
  // Tokens are definitions of the engines.
  access: { parts: [...BASE, 'engine'], packages: ['node:*'] },
  broker: { parts: [...BASE, 'engine'], packages: [] },
  sandbox: { parts: BASE, packages: ['node:*', 'acorn', 'quickjs-wasi'] },
  exchange: { parts: [...BASE, 'engine', 'broker', 'sandbox'], packages: ['node:*'] },
  // Bulk operations, which run in the background.
  operations: { parts: [...BASE, 'engine', 'broker', 'sandbox', 'exchange'], packages: ['node:*'] },
  // Events about changes, sent to subscribers.
  events: { parts: [...BASE, 'access', 'engine', 'broker', 'exchange', 'operations'], packages: [] },
  // Spans of requests and engine calls, and their export to a collector.
  tracing: { parts: [...BASE, 'engine'], packages: ['node:*'] },
  http: { parts: [...CORE, 'tracing'], packages: ['node:*', 'find-my-way'] },
  // Shared by the front ends with sessions, STOMP and AMQP.
  session: { parts: [...BASE, 'access', 'broker'], packages: ['node:*', 'ws'] },
  stomp: { parts: [...CORE, 'session'], packages: ['node:*'] },
  amqp: { parts: [...CORE, 'session'], packages: ['node:*'] },
  metrics: {
    parts: [...BASE, 'engine', 'broker', 'exchange', 'operations', 'events', 'session', 'tracing'],
    packages: ['node:*', '@prometheus-io/client'],
  },
  config: { parts: BASE, packages: ['node:*', 'yaml'] },
  // Runs in a browser and uses only the HTTP interface, whose records are types of the model.
  console: {
    parts: [],
    types: ['model'],
    packages: ['@codemirror', '@dagrejs', '@lezer', '@preact/signals', 'preact'],
  },
  // Needs nothing but `fetch`.
  client: { parts: [], types: ['model'], packages: [] },
  cli: { parts: ['client', 'util'], types: ['model'], packages: ['node:*', 'commander'] },
  // The composition root and the process boundary: only this part knows the configuration and the concrete engines.
  app: {
    parts: [
      ...CORE,
      'engine',
      'session',
      'http',
      'stomp',
      'amqp',
      'metrics',
      'tracing',
      'config',
      ...Object.keys(DRIVERS),
    ],
    packages: ['node:*', 'pino'],
  },
  'program.ts': { parts: ['config', 'app', 'cli'], packages: ['node:*'] },
  'main.ts': { parts: ['program.ts'], packages: [] },
};

/** Constructs that are reserved for certain files, because tests, operators or readers rely on it. */
const RESERVED: readonly { readonly what: RegExp; readonly only: readonly string[]; readonly why: string }[] =
  [
    {
      what: /\bprocess\s*\.\s*(exit|abort|reallyExit)\b/,
      only: ['src/main.ts'],
      why: 'only main.ts may exit',
    },
    {
      what: /'acorn'/,
      only: ['src/sandbox/thread/source.ts'],
      why: 'a selector is parsed in the thread that can be ended, never on the main thread',
    },
    {
      what: /\bconsole\s*\.\s*(log|info|warn|error|debug|trace|table|dir)\b/,
      // The client is a library: a program that uses it does not have the server's log.
      only: ['src/app/log.ts', 'src/client/logger.ts'],
      why: 'what a server has to say goes to its log',
    },
    {
      // A socket's idle timer is allowed: only the socket knows whether bytes are still moving.
      what: /\bDate\s*\.\s*now\b|\bperformance\s*\.\s*now\b|(?<!socket\.)\bset(Timeout|Interval)\s*\(/,
      // The selector thread measures its own time limit, and no clock is injected there. The client and the console are
      // loaded without the server's clock.
      only: [
        'src/util/clock.ts',
        'src/sandbox/thread/selector-thread.ts',
        'src/console/timers.ts',
        'src/client/time.ts',
      ],
      why: 'time comes from the injected clock',
    },
    {
      // A response that bypasses Node's HTTP server needs a `Date` header.
      what: /\bnew Date\(\)/,
      only: ['src/util/clock.ts', 'src/http/server.ts'],
      why: 'time comes from the injected clock',
    },
    { what: /\bMath\s*\.\s*random\s*\(/, only: [], why: 'randomness is injected' },
  ];

interface Import {
  readonly specifier: string;
  readonly isTypeOnly: boolean;
}

interface SourceFile {
  /** Relative to the root, with `/` as separator. */
  readonly path: string;
  /** Without comments and with empty string literals. */
  readonly code: string;
  readonly imports: readonly Import[];
}

/** In columns. The formatter does not wrap comments. */
const COMMENT_WIDTH = 120;

const SOURCES = filesUnder('src').map(readSource);

describe('The source', () => {
  it('is read with its imports', () => {
    assert.ok(SOURCES.length > 40);
    assert.ok(SOURCES.some(({ imports }) => imports.length > 5));
  });

  it('has only imports that the rules allow', () => {
    assert.deepEqual(SOURCES.flatMap(forbiddenImports), []);
  });

  it('has a rule for each of its parts', () => {
    const parts = new Set(SOURCES.map(({ path }) => partOf(path)));
    assert.deepEqual(
      [...parts].filter((part) => RULES[part] === undefined),
      [],
    );
  });

  it('has no import cycle', () => {
    assert.deepEqual(cycles(SOURCES), []);
  });

  it('has no comment wider than 120 columns', () => {
    const wide = SOURCES.flatMap(({ path }) =>
      readFileSync(join(ROOT, path), 'utf8')
        .split('\n')
        .filter((line) => /^\s*(\/\/|\/?\*)/.test(line) && line.length > COMMENT_WIDTH)
        .map((line) => `${path}: ${line.trim()}`),
    );
    assert.deepEqual(wide, []);
  });

  it('uses exits, time, randomness and output only in the files reserved for them', () => {
    const found = SOURCES.flatMap(({ path, code }) =>
      RESERVED.filter(({ what, only }) => what.test(code) && !only.includes(path)).map(
        ({ why, what }) => `${path}: ${why} (${what.exec(code)?.[0]})`,
      ),
    );
    assert.deepEqual(found, []);
  });
});

/** The client is a separate library with its users' terms: a type name may mean something else there. */
const isOfClient = ({ path }: SourceFile): boolean => path.startsWith('src/client/');

describe('A type name', () => {
  // Engines implement the same ports independently, so each may declare a private type such as Batch.
  it('is declared once in src, except in the client and for private types of different engines', () => {
    assert.deepEqual(ambiguousTypes(SOURCES.filter(isOfClient)), []);
    assert.deepEqual(
      ambiguousTypes(SOURCES.filter((file) => !isOfClient(file))),
      [],
      'give one of them another name',
    );
  });
});

describe('The architecture test', () => {
  it('finds imports of every form and ignores comments and string literals', () => {
    const source = parse(
      'src/x.ts',
      [
        "import a from './a.ts'; import type { B } from './b.ts';",
        "import {\n  type C,\n  d,\n} from './c.ts';",
        "export * from './d.ts'; export type { E } from './e.ts';",
        "const f = await import('./f.ts'); import './g.ts';",
        "const h = new URL('./h.ts', import.meta.url);",
        "// import './no1.ts'",
        "/* import './no2.ts' */ const text = \"import './no3.ts'\";",
        "const url = 'http://x'; import { i } from './i.ts'; const pattern = /'[/]/; import { j } from './j.ts';",
      ].join('\n'),
    );
    assert.deepEqual(
      source.imports
        .map(({ specifier, isTypeOnly }) => (isTypeOnly ? `${specifier} type` : specifier))
        .sort(),
      [
        './a.ts',
        './b.ts type',
        './c.ts',
        './d.ts',
        './e.ts type',
        './f.ts',
        './g.ts',
        './h.ts',
        './i.ts',
        './j.ts',
      ],
    );
  });

  it('finds a type name that is declared twice', () => {
    const files = [
      parse('src/http/x.ts', 'export interface Call {}\nclass Own {}\n  type Call = 1;'),
      parse('src/sandbox/y.ts', "import type { Own } from './own.ts';\ntype Call = number;"),
      parse('src/engines/redis/z.ts', 'class Batch {}\ninterface Row {}'),
      parse('src/engines/sqlite/z.ts', 'class Batch {}\ninterface Slot {}'),
      parse('src/engines/sqlite/y.ts', 'interface Slot {}'),
      parse('src/model/z.ts', 'export type Row = string;'),
    ];
    assert.deepEqual(ambiguousTypes(files), [
      'Call: src/http/x.ts, src/sandbox/y.ts',
      'Row: src/engines/redis/z.ts, src/model/z.ts',
      'Slot: src/engines/sqlite/z.ts, src/engines/sqlite/y.ts',
    ]);
  });

  it('finds a forbidden import and an import cycle', () => {
    const model = parse('src/model/x.ts', "import { Y } from '../broker/y.ts'; import fs from 'node:fs';");
    const broker = parse('src/broker/y.ts', "import { X } from '../model/x.ts';");
    assert.deepEqual(forbiddenImports(model), [
      'src/model/x.ts may not import src/broker/y.ts',
      'src/model/x.ts may not import node:fs',
    ]);
    const page = parse(
      'src/console/x.ts',
      "import type { X } from '../model/x.ts'; import { Y } from '../model/y.ts';",
    );
    assert.deepEqual(forbiddenImports(page), ['src/console/x.ts may not import src/model/y.ts']);
    assert.deepEqual(cycles([model, broker]), ['src/model/x.ts -> src/broker/y.ts -> src/model/x.ts']);
  });
});

/**
 * Names of interfaces, classes and type aliases that more than one file declares at its top level, exported or not.
 * Different engines may declare the same name, provided that no other part declares it and no engine declares it twice.
 */
function ambiguousTypes(files: readonly SourceFile[]): string[] {
  const declared = files.flatMap(({ path, code }) =>
    [...code.matchAll(TYPE_DECLARATION)].map(([, name = '']) => ({ name, path })),
  );
  return [...Map.groupBy(declared, ({ name }) => name)].flatMap(([name, all]) => {
    const paths = [...new Set(all.map(({ path }) => path))];
    const engines = paths.filter((path) => path.startsWith('src/engines/')).map(partOf);
    const isOfEngines = engines.length === paths.length && new Set(engines).size === engines.length;
    return paths.length === 1 || isOfEngines ? [] : [`${name}: ${paths.join(', ')}`];
  });
}

const TYPE_DECLARATION =
  /^(?:export )?(?:default )?(?:declare )?(?:abstract )?(?:interface|class|type) (\w+)/gm;

function forbiddenImports({ path, imports }: SourceFile): string[] {
  const part = partOf(path);
  const rule = RULES[part] ?? { parts: [], packages: [] };
  return imports.flatMap(({ specifier, isTypeOnly }) => {
    if (!specifier.startsWith('.'))
      return mayUse(rule, specifier) ? [] : [`${path} may not import ${specifier}`];
    const target = targetOf(path, specifier);
    const to = partOf(target);
    const isAllowed = to === part || rule.parts.includes(to) || (isTypeOnly && rule.types?.includes(to));
    return isAllowed ? [] : [`${path} may not import ${target}`];
  });
}

function mayUse({ packages }: Rule, specifier: string): boolean {
  if (packages.includes(specifier)) return true;
  // A driver is reserved for its engine even if it is built into Node.
  if (specifier.startsWith('node:')) return packages.includes('node:*') && specifier !== 'node:sqlite';
  return packages.some((name) => specifier.startsWith(`${name}/`));
}

/** The part of a path, such as `broker`, `engines/sqlite` or `main.ts`. */
function partOf(path: string): string {
  const [, first = '', second = '', ...rest] = path.split('/');
  return first === 'engines' && rest.length > 0 ? `${first}/${second}` : first;
}

function targetOf(path: string, specifier: string): string {
  return slashed(relative(ROOT, resolve(ROOT, dirname(path), specifier)));
}

/** Import cycles that exist at run time; type-only imports may be cyclic. */
function cycles(files: readonly SourceFile[]): string[] {
  const byPath = new Map(files.map((file) => [file.path, file]));
  const done = new Set<string>();
  const found: string[] = [];
  const visit = (path: string, trail: readonly string[]): void => {
    const start = trail.indexOf(path);
    if (start >= 0) found.push([...trail.slice(start), path].join(' -> '));
    if (start >= 0 || done.has(path)) return;
    for (const { specifier, isTypeOnly } of byPath.get(path)?.imports ?? []) {
      if (specifier.startsWith('.') && !isTypeOnly) visit(targetOf(path, specifier), [...trail, path]);
    }
    done.add(path);
  };
  for (const path of byPath.keys()) visit(path, []);
  return found;
}

function filesUnder(folder: string): string[] {
  return readdirSync(join(ROOT, folder), { recursive: true, encoding: 'utf8' })
    .filter((name) => /\.tsx?$/.test(name) && !name.includes('node_modules'))
    .map((name) => slashed(join(folder, name)));
}

function readSource(path: string): SourceFile {
  return parse(path, readFileSync(join(ROOT, path), 'utf8'));
}

function parse(path: string, text: string): SourceFile {
  const { code, strings } = extractStrings(text);
  const imports: Import[] = [];
  const statement =
    /\b(?:import|export)\b(\s+type\b)?(?:[^;()=§]*?\bfrom\s*|\s*)§(\d+)§|\b(?:import|new URL)\s*\(\s*§(\d+)§/g;
  for (const [whole, type, ofStatement, ofCall] of code.matchAll(statement)) {
    const specifier = strings[Number(ofStatement ?? ofCall)] ?? '';
    // A URL of a source file is the entry point of a worker thread.
    if (whole.startsWith('new') && !specifier.endsWith('.ts')) continue;
    imports.push({ specifier, isTypeOnly: type !== undefined });
  }
  return { path, code: code.replaceAll(/§\d+§/g, "''"), imports };
}

/** Removes comments and replaces each string literal with its index: `import x from §0§`. */
function extractStrings(source: string): { code: string; strings: string[] } {
  const strings: string[] = [];
  const token =
    /\/\*[\s\S]*?\*\/|\/\/[^\n]*|'((?:[^'\\\n]|\\.)*)'|"((?:[^"\\\n]|\\.)*)"|`(?:[^`\\]|\\[\s\S])*`|(?<=[=(,:!&|?[{};]\s*)\/(?:[^/\\\n[]|\\.|\[(?:[^\]\\\n]|\\.)*\])+\/[a-z]*/g;
  const code = source.replace(token, (whole, single?: string, double?: string) => {
    if (whole.startsWith('/*') || whole.startsWith('//')) return ' ';
    strings.push(single ?? double ?? '');
    return `§${strings.length - 1}§`;
  });
  return { code, strings };
}

function slashed(path: string): string {
  return path.replaceAll('\\', '/');
}
