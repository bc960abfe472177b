import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, relative, resolve } from 'node:path';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('..', import.meta.url));

/** A part of `src`: which other parts it may import, and which packages. `node:*` stands for Node's own. */
interface Rule {
  readonly parts: readonly string[];
  readonly packages: readonly string[];
}

/** Concrete engines, each with its driver. They never see each other. */
const DRIVERS: Readonly<Record<string, string>> = {
  'engines/sqlite': 'node:sqlite',
  'engines/redis': 'ioredis',
  'engines/postgres': 'pg',
};

/** What every part may import: plain values, and tools that know nothing of Quayside. */
const BASE = ['model', 'util'];
/** What a front end may import. */
const CORE = [...BASE, 'access', 'broker', 'sandbox', 'exchange', 'operations', 'events'];

/** Which way imports go. A part that is not listed may not exist: add it here, and say in the review why. */
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
  // Work on many elements of a queue, which a caller starts and follows.
  operations: { parts: [...BASE, 'engine', 'broker', 'sandbox', 'exchange'], packages: ['node:*'] },
  // What changes, sent to subscribers.
  events: { parts: [...BASE, 'access', 'engine', 'broker', 'exchange', 'operations'], packages: [] },
  // Spans of requests and of calls of engines, and their way to a collector.
  tracing: { parts: [...BASE, 'engine'], packages: ['node:*'] },
  http: { parts: [...CORE, 'tracing'], packages: ['node:*', 'find-my-way'] },
  // What front ends whose clients keep a session share.
  session: { parts: [...BASE, 'access', 'broker'], packages: ['node:*', 'ws'] },
  stomp: { parts: [...CORE, 'session'], packages: ['node:*'] },
  amqp: { parts: [...CORE, 'session'], packages: ['node:*'] },
  metrics: {
    parts: [...BASE, 'engine', 'broker', 'exchange', 'operations', 'events', 'session', 'tracing'],
    packages: ['node:*', '@prometheus-io/client'],
  },
  config: { parts: BASE, packages: ['node:*', 'yaml'] },
  // Runs in a browser: it knows the HTTP interface, and nothing of the server.
  console: {
    parts: [],
    packages: ['@codemirror', '@dagrejs', '@lezer', '@preact/signals', 'preact'],
  },
  // `fetch` is all that it needs.
  client: { parts: ['model'], packages: [] },
  cli: { parts: ['client', 'util'], packages: ['node:*', 'commander'] },
  // The composition root and the process edge: the only one that knows the configuration and the concrete engines.
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
  'main.ts': { parts: ['config', 'app', 'cli'], packages: ['node:*'] },
};

/** What only one file may do, because a test, an operator or a reader counts on it. */
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
      // The client is a library: the program that loads it has no log of the server.
      only: ['src/app/log.ts', 'src/client/logger.ts'],
      why: 'what a server has to say goes to its log',
    },
    {
      // A socket's idle timer is the socket's: it alone knows whether bytes still move.
      what: /\bDate\s*\.\s*now\b|\bperformance\s*\.\s*now\b|(?<!socket\.)\bset(Timeout|Interval)\s*\(/,
      // What a selector's thread may take is measured where nothing is injected.
      // The client and the console are loaded without the server's clock.
      only: [
        'src/util/clock.ts',
        'src/sandbox/thread/selector-thread.ts',
        'src/console/timers.ts',
        'src/client/time.ts',
      ],
      why: 'time comes from the injected clock',
    },
    {
      // An answer that Node did not make needs its own `Date` header.
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
  /** From the root, with `/`. */
  readonly path: string;
  /** Without comments and without the contents of texts. */
  readonly code: string;
  readonly imports: readonly Import[];
}

/** Columns. The formatter leaves comments as they are. */
const COMMENT_WIDTH = 120;

const SOURCES = filesUnder('src').map(readSource);

describe('The source', () => {
  it('is found', () => {
    assert.ok(SOURCES.length > 40);
    assert.ok(SOURCES.some(({ imports }) => imports.length > 5));
  });

  it('imports only the ways that the design allows', () => {
    assert.deepEqual(SOURCES.flatMap(forbiddenImports), []);
  });

  it('has a rule for each of its parts', () => {
    const parts = new Set(SOURCES.map(({ path }) => partOf(path)));
    assert.deepEqual(
      [...parts].filter((part) => RULES[part] === undefined),
      [],
    );
  });

  it('has no file that needs itself', () => {
    assert.deepEqual(cycles(SOURCES), []);
  });

  it('has no comment that is wider than 120 columns', () => {
    const wide = SOURCES.flatMap(({ path }) =>
      readFileSync(join(ROOT, path), 'utf8')
        .split('\n')
        .filter((line) => /^\s*(\/\/|\/?\*)/.test(line) && line.length > COMMENT_WIDTH)
        .map((line) => `${path}: ${line.trim()}`),
    );
    assert.deepEqual(wide, []);
  });

  it('keeps exits, time, randomness and output in their places', () => {
    const found = SOURCES.flatMap(({ path, code }) =>
      RESERVED.filter(({ what, only }) => what.test(code) && !only.includes(path)).map(
        ({ why, what }) => `${path}: ${why} (${what.exec(code)?.[0]})`,
      ),
    );
    assert.deepEqual(found, []);
  });
});

/** A library of its own, in the words of its users: what it calls a queue is not the server's. */
const isOfClient = ({ path }: SourceFile): boolean => path.startsWith('src/client/');

describe('A type name', () => {
  // Engines never see each other, and each implements the same ports: a batch of one is not a batch of another.
  it('means one thing in all of src, but for the private types of different engines, and in the client', () => {
    assert.deepEqual(ambiguousTypes(SOURCES.filter(isOfClient)), []);
    assert.deepEqual(
      ambiguousTypes(SOURCES.filter((file) => !isOfClient(file))),
      [],
      'give one of them another name',
    );
  });
});

describe('The test of the architecture', () => {
  it('sees imports of every form, and none in comments and texts', () => {
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

  it('finds a type name with two meanings', () => {
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

  it('finds a forbidden arrow and a cycle', () => {
    const model = parse('src/model/x.ts', "import { Y } from '../broker/y.ts'; import fs from 'node:fs';");
    const broker = parse('src/broker/y.ts', "import { X } from '../model/x.ts';");
    assert.deepEqual(forbiddenImports(model), [
      'src/model/x.ts may not import src/broker/y.ts',
      'src/model/x.ts may not import node:fs',
    ]);
    assert.deepEqual(cycles([model, broker]), ['src/model/x.ts -> src/broker/y.ts -> src/model/x.ts']);
  });
});

/**
 * Names of interfaces, classes and type aliases that more than one file declares at its top level, exported or not.
 * Engines may repeat each other's names, but not one of their own, nor one of the rest of the source.
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
  return imports.flatMap(({ specifier }) => {
    if (!specifier.startsWith('.'))
      return mayUse(rule, specifier) ? [] : [`${path} may not import ${specifier}`];
    const target = targetOf(path, specifier);
    const to = partOf(target);
    return to === part || rule.parts.includes(to) ? [] : [`${path} may not import ${target}`];
  });
}

function mayUse({ packages }: Rule, specifier: string): boolean {
  if (packages.includes(specifier)) return true;
  // A driver is its engine's own, also when it comes with Node.
  if (specifier.startsWith('node:')) return packages.includes('node:*') && specifier !== 'node:sqlite';
  return packages.some((name) => specifier.startsWith(`${name}/`));
}

/** `broker`, `engines/sqlite`, `main.ts`. */
function partOf(path: string): string {
  const [, first = '', second = '', ...rest] = path.split('/');
  return first === 'engines' && rest.length > 0 ? `${first}/${second}` : first;
}

function targetOf(path: string, specifier: string): string {
  return slashed(relative(ROOT, resolve(ROOT, dirname(path), specifier)));
}

/** Cycles of imports that are there at run time; types may refer to each other. */
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
  const { code, texts } = separate(text);
  const imports: Import[] = [];
  const statement =
    /\b(?:import|export)\b(\s+type\b)?(?:[^;()=§]*?\bfrom\s*|\s*)§(\d+)§|\b(?:import|new URL)\s*\(\s*§(\d+)§/g;
  for (const [whole, type, ofStatement, ofCall] of code.matchAll(statement)) {
    const specifier = texts[Number(ofStatement ?? ofCall)] ?? '';
    // A URL of a source file is one that a thread is started from.
    if (whole.startsWith('new') && !specifier.endsWith('.ts')) continue;
    imports.push({ specifier, isTypeOnly: type !== undefined });
  }
  return { path, code: code.replaceAll(/§\d+§/g, "''"), imports };
}

/** Takes comments out, and puts a number in the place of each text: `import x from §0§`. */
function separate(source: string): { code: string; texts: string[] } {
  const texts: string[] = [];
  const piece =
    /\/\*[\s\S]*?\*\/|\/\/[^\n]*|'((?:[^'\\\n]|\\.)*)'|"((?:[^"\\\n]|\\.)*)"|`(?:[^`\\]|\\[\s\S])*`|(?<=[=(,:!&|?[{};]\s*)\/(?:[^/\\\n[]|\\.|\[(?:[^\]\\\n]|\\.)*\])+\/[a-z]*/g;
  const code = source.replace(piece, (whole, single?: string, double?: string) => {
    if (whole.startsWith('/*') || whole.startsWith('//')) return ' ';
    texts.push(single ?? double ?? '');
    return `§${texts.length - 1}§`;
  });
  return { code, texts };
}

function slashed(path: string): string {
  return path.replaceAll('\\', '/');
}
