/** The pages of the site in the order of its sidebar. A page of `docs` that is not named here fails a test. */
export interface Section {
  readonly title: string;
  /** Paths from the root of the repository. The first heading of a page is its name in the sidebar. */
  readonly pages: readonly string[];
  /** Shown open, and not folded up, on every page. */
  readonly isOpen?: boolean;
}

/** The page at the address of the site itself. */
export const INDEX = 'docs/README.md';

export const SECTIONS: readonly Section[] = [
  {
    title: 'Get started',
    isOpen: true,
    pages: inDocs('get-started/install', 'get-started/first-queue', 'get-started/first-worker'),
  },
  {
    title: 'Concepts',
    isOpen: true,
    pages: inDocs('concepts', 'comparison', 'comparison-consoles', 'glossary'),
  },
  {
    title: 'Guides',
    isOpen: true,
    pages: inDocs(
      'guides/scheduling',
      'guides/policies',
      'guides/idempotency',
      'guides/exchanges',
      'guides/streams',
      'guides/batches',
      'guides/browse',
      'guides/operations',
      'guides/events',
      'guides/export',
      'guides/migrate',
      'guides/browsers',
    ),
  },
  {
    title: 'Operate',
    isOpen: true,
    pages: inDocs(
      'operate/production',
      'operate/run',
      'operate/security',
      'operate/docker',
      'operate/systemd',
      'operate/proxies',
      'operate/kubernetes',
      'operate/monitoring',
      'operate/alerts',
      'operate/log-events',
      'operate/tracing',
      'operate/backup',
      'operate/upgrade',
      'operate/limits',
      'operate/troubleshooting',
      'operate/disasters/disk-full',
      'operate/disasters/engine-lost',
      'operate/disasters/file-damaged',
      'operate/disasters/wrong-clock',
      'operate/disasters/certificate-expired',
      'operate/disasters/password-lost',
    ),
  },
  {
    title: 'Engines',
    pages: inDocs('engines/README', 'engines/sqlite', 'engines/redis', 'engines/postgres'),
  },
  {
    title: 'Protocols',
    pages: inDocs('protocols/http', 'protocols/stomp', 'protocols/amqp', 'protocols/parity'),
  },
  { title: 'Console and command line', pages: inDocs('console', 'cli') },
  { title: 'SDKs', pages: inDocs('sdk/typescript', 'sdk/python') },
  {
    title: 'Move to Quayside',
    pages: inDocs(
      'migrate/README',
      'migrate/bullmq',
      'migrate/celery',
      'migrate/sqs',
      'migrate/beanstalkd',
      'migrate/keuss-server',
    ),
  },
  {
    title: 'Reference',
    pages: inDocs(
      'reference/configuration',
      'reference/routes',
      'reference/errors',
      'reference/metrics',
      'reference/commands',
    ),
  },
  {
    title: 'Internals',
    pages: [
      'CONTRIBUTING.md',
      ...inDocs('internals/sqlite', 'internals/redis', 'internals/postgres', 'internals/release'),
    ],
  },
  {
    title: 'Decisions',
    pages: inDocs(
      'adr/0001-architecture',
      'adr/0002-dependencies',
      'adr/0003-http-without-framework',
      'adr/0004-selector-sandbox',
      'adr/0005-signals-behind-inserts',
      'adr/0006-young-generation',
      'adr/0007-no-mongodb',
      'adr/0008-failed-logins',
      'adr/0009-sqlite-rows-and-syncs',
      'adr/0010-redis-driver',
      'adr/0011-storage-port',
      'adr/0012-worker-hand-off',
      'adr/0013-redis-outbox',
      'adr/0014-postgres-computed-ids',
      'adr/0015-amqp-core',
      'adr/0016-events-without-queues',
      'adr/0017-console-sessions',
      'adr/0018-migration',
      'adr/0019-api-tokens',
      'adr/0020-questions-between-nodes',
    ),
  },
  { title: 'Releases', pages: ['CHANGELOG.md'] },
];

/** Every page of the site. */
export const PAGES: readonly string[] = [INDEX, ...SECTIONS.flatMap(({ pages }) => pages)];

/** The path of a page in the site: `docs/engines/README.md` is `engines/index.md`, `CHANGELOG.md` is `changelog.md`. */
export function sitePathOf(page: string): string {
  if (!page.startsWith('docs/')) return page.toLowerCase();
  return page.slice('docs/'.length).replace(/(^|\/)README\.md$/, '$1index.md');
}

function inDocs(...names: readonly string[]): string[] {
  return names.map((name) => `docs/${name}.md`);
}
