import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { parseAllDocuments, parseDocument } from 'yaml';
import { installTools } from '../../scripts/install-tools.ts';
import { Folder } from '../system/program.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const TOOLS = join(import.meta.dirname, 'helm');
const CHART = join(ROOT, 'ops/helm/quayside');
const run = promisify(execFile);

/** The declaration file of each manifest's type. ServiceMonitor is missing: it is not a type of Kubernetes. */
const TYPES: Readonly<Record<string, string>> = {
  'apps/v1 Deployment': 'kubernetes-types/apps/v1.d.ts',
  'apps/v1 StatefulSet': 'kubernetes-types/apps/v1.d.ts',
  'networking.k8s.io/v1 NetworkPolicy': 'kubernetes-types/networking/v1.d.ts',
  'policy/v1 PodDisruptionBudget': 'kubernetes-types/policy/v1.d.ts',
  'v1 ConfigMap': 'kubernetes-types/core/v1.d.ts',
  'v1 Service': 'kubernetes-types/core/v1.d.ts',
  'v1 ServiceAccount': 'kubernetes-types/core/v1.d.ts',
};

const SECRETS = { name: 'quayside', users: { admin: 'admin' } };
const COLLECTOR = { to: [{ podSelector: { matchLabels: { app: 'collector' } } }], ports: [{ port: 4318 }] };
const EVERYTHING = {
  secrets: { ...SECRETS, consoleSecret: 'console' },
  stomp: { port: 61613 },
  amqp: { port: 5672 },
  tls: { secretName: 'certificate' },
  service: { annotations: { a: 'b' } },
  image: { pullSecrets: [{ name: 'registry' }] },
  networkPolicy: {
    clients: [{ namespaceSelector: { matchLabels: { team: 'shop' } } }],
    monitoring: [{ namespaceSelector: { matchLabels: { 'kubernetes.io/metadata.name': 'monitoring' } } }],
    engines: [{ ipBlock: { cidr: '10.0.0.0/8' } }],
    egress: [COLLECTOR],
  },
  serviceMonitor: { enabled: true, labels: { release: 'prometheus' }, basicAuth: { secretName: 'metrics' } },
  serviceAccount: { annotations: { c: 'd' } },
  podLabels: { e: 'f' },
  podAnnotations: { g: 'h' },
  nodeSelector: { disk: 'ssd' },
  tolerations: [{ key: 'queues', operator: 'Exists' }],
  affinity: { podAntiAffinity: {} },
};
const SHAPES: Readonly<Record<string, object>> = {
  'SQLite, nothing but the Secret': { secrets: SECRETS },
  'SQLite, everything': { ...EVERYTHING, persistence: { size: '1Gi', storageClass: 'fast' } },
  'Redis or PostgreSQL, nothing but the Secret': {
    engine: 'server',
    secrets: { ...SECRETS, urls: { N: 'url' } },
  },
  'Redis or PostgreSQL, everything': {
    ...EVERYTHING,
    engine: 'server',
    strategy: 'Recreate',
    replicas: 5,
    secrets: { ...EVERYTHING.secrets, urls: { N: 'url', jobs: 'url' } },
    config: { http: { port: 80 }, namespaces: { jobs: { deadLetter: { maxTries: 5 } } } },
  },
};

interface Rendered {
  readonly files?: Readonly<Record<string, string>>;
  readonly error?: string;
}

// biome-ignore lint/suspicious/noExplicitAny: Kubernetes' objects, whose types the test checks by the compiler.
type Manifest = any;

/** Renders the chart as Helm does, once for each of the given values. */
async function render(requests: readonly object[]): Promise<Rendered[]> {
  const renderer = spawn('go', ['run', join(TOOLS, 'render.go'), CHART], {
    env: { ...process.env, GO111MODULE: 'off', GOPATH: '/usr/share/gocode' },
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  renderer.stdin.end(JSON.stringify(requests));
  return JSON.parse(await text(renderer.stdout));
}

/** The manifests of a rendered chart. Kubernetes parses YAML 1.1. */
function manifestsOf({ files, error }: Rendered): Manifest[] {
  assert.equal(error, undefined);
  return Object.entries(files ?? {})
    .filter(([name]) => name.endsWith('.yaml'))
    .flatMap(([, source]) => parseAllDocuments(source, { version: '1.1', uniqueKeys: true }))
    .map((document) => {
      assert.deepEqual(document.errors, []);
      return document.toJS();
    })
    .filter((manifest) => manifest !== null);
}

describe('The Helm chart', () => {
  let folder: Folder;
  let shapes: Map<string, Manifest[]>;
  const workloads = (): [string, Manifest][] =>
    [...shapes].map(([name, manifests]) => [
      name,
      manifests.find(({ kind }) => kind === 'StatefulSet' || kind === 'Deployment'),
    ]);

  before(async () => {
    await run(join(ROOT, 'scripts/debian-packages.sh'), [
      'golang-go',
      'golang-github-masterminds-sprig-dev',
      'golang-github-xeipuuv-gojsonschema-dev',
      'golang-k8s-sigs-yaml-dev',
    ]);
    await installTools(TOOLS);
    folder = await Folder.create();
    const rendered = await render(Object.values(SHAPES));
    shapes = new Map(
      Object.keys(SHAPES).map((name, at) => [name, manifestsOf(rendered[at] ?? { error: 'not rendered' })]),
    );
  });
  after(() => folder.dispose());

  it('has manifests that conform to the types of Kubernetes', async () => {
    // Not among the sources, which other tests read.
    const checkFolder = await mkdtemp(join(TOOLS, 'node_modules', 'manifests-'));
    try {
      let source = '';
      for (const [name, manifests] of shapes) {
        for (const manifest of manifests.filter(({ kind }) => kind !== 'ServiceMonitor')) {
          const type = TYPES[`${manifest.apiVersion} ${manifest.kind}`];
          assert.ok(type, `${manifest.apiVersion} ${manifest.kind}`);
          source += `// ${name}\n({ kind: ${JSON.stringify(manifest.kind)}, manifest: ${JSON.stringify(manifest)} satisfies import('${type}').${manifest.kind} });\n`;
        }
      }
      await writeFile(join(checkFolder, 'manifests.ts'), source);
      const check = (file: string): Promise<unknown> => {
        const flags = ['--noEmit', '--strict', '--module', 'nodenext', '--skipLibCheck', '--ignoreConfig'];
        return run('tsc', [...flags, file], { cwd: checkFolder });
      };
      await check('manifests.ts').catch(({ stdout }) => assert.fail(stdout));
      // Prove that the check finds an error.
      await writeFile(join(checkFolder, 'wrong.ts'), source.replaceAll('"runAsNonRoot"', '"runAsNotRoot"'));
      await assert.rejects(check('wrong.ts'), ({ stdout }) => stdout.includes('runAsNotRoot'));
    } finally {
      await rm(checkFolder, { recursive: true });
    }
  });

  it('gives the nodes a configuration that the server accepts', async () => {
    for (const [name, workload] of workloads()) {
      const [container] = workload.spec.template.spec.containers;
      const manifests = shapes.get(name) ?? [];
      const { data } = manifests.find(({ kind }) => kind === 'ConfigMap');
      const config = await folder.write('quayside.yaml', data['quayside.yaml']);
      const env: Record<string, string> = {};
      for (const { name: variable, value } of container.env) {
        const isPath = /^\/run\/secrets\//.test(value);
        const secret = variable.endsWith('URL_FILE') ? 'postgres://db/quayside' : 'x'.repeat(32);
        env[variable] = isPath ? folder.file(await folder.write(`${variable}.txt`, secret)) : value;
      }
      const printed = await folder.run(['--print-config', '--config', config], { env });
      assert.equal(printed.code, 0, `${name}: ${printed.stderr}`);
      const { http } = parseDocument(printed.stdout).toJS();
      assert.deepEqual(Object.keys(http.users), ['admin'], name);
      assert.equal(http.port, container.ports[0].containerPort, name);
    }
  });

  it('gives the nodes no privileges, and /data as the only writable volume', () => {
    for (const [name, workload] of workloads()) {
      const { template } = workload.spec;
      const [container] = template.spec.containers;
      assert.deepEqual(
        [template.spec.securityContext.runAsNonRoot, template.spec.securityContext.seccompProfile.type],
        [true, 'RuntimeDefault'],
        name,
      );
      const { allowPrivilegeEscalation, readOnlyRootFilesystem, capabilities } = container.securityContext;
      assert.deepEqual(
        [allowPrivilegeEscalation, readOnlyRootFilesystem, capabilities.drop],
        [false, true, ['ALL']],
        name,
      );
      assert.equal(template.spec.automountServiceAccountToken, false, name);
      const writable = container.volumeMounts.filter(({ readOnly }: Manifest) => readOnly !== true);
      assert.deepEqual(
        writable.map(({ mountPath }: Manifest) => mountPath),
        ['/data'],
        name,
      );
      const [secrets] = template.spec.volumes.filter(({ name: volume }: Manifest) => volume === 'secrets');
      assert.equal(secrets.secret.defaultMode, 0o440, name);
      assert.ok(container.resources.limits.memory, name);
      const probes = [container.startupProbe, container.livenessProbe, container.readinessProbe];
      assert.deepEqual(
        probes.map(({ httpGet }) => httpGet.path),
        ['/livez', '/livez', '/readyz'],
        name,
      );
    }
  });

  it('lets nodes connect only to engines and to targets given in the values', () => {
    const DNS = 53;
    const expected = {
      'SQLite, nothing but the Secret': [],
      'SQLite, everything': [DNS, DNS, 4318],
      'Redis or PostgreSQL, nothing but the Secret': [DNS, DNS, 5432, 6379],
      'Redis or PostgreSQL, everything': [DNS, DNS, 5432, 6379, 4318],
    };
    const open = [...shapes].map(([name, manifests]) => {
      const { egress } = manifests.find(({ kind }) => kind === 'NetworkPolicy').spec;
      const ports = egress.flatMap((rule: Manifest) => rule.ports.map(({ port }: Manifest) => port));
      return [name, ports];
    });
    assert.deepEqual(Object.fromEntries(open), expected);
  });

  it('refers only to labels, ports and volumes that the pods have', () => {
    for (const [name, manifests] of shapes) {
      const workload = manifests.find(({ kind }) => kind === 'StatefulSet' || kind === 'Deployment');
      const { template, volumeClaimTemplates = [] } = workload.spec;
      const [container] = template.spec.containers;
      const ports: string[] = container.ports.map(({ name: port }: Manifest) => port);
      const used: string[] = [];
      for (const { kind, spec } of manifests) {
        const selector = { Service: spec?.selector, NetworkPolicy: spec?.podSelector?.matchLabels }[
          kind as string
        ];
        const selected = selector ?? spec?.selector?.matchLabels;
        if (selected !== undefined)
          assert.deepEqual(
            { ...template.metadata.labels, ...selected },
            template.metadata.labels,
            `${name}: ${kind}`,
          );
        if (kind === 'Service') used.push(...spec.ports.map(({ targetPort }: Manifest) => targetPort));
        if (kind === 'ServiceMonitor') used.push(...spec.endpoints.map(({ port }: Manifest) => port));
        if (kind === 'NetworkPolicy')
          used.push(
            ...spec.ingress.flatMap(({ ports: open }: Manifest) => open.map(({ port }: Manifest) => port)),
          );
      }
      assert.deepEqual(
        used.filter((port) => !ports.includes(port)),
        [],
        name,
      );
      const volumes = [
        ...template.spec.volumes.map(({ name: volume }: Manifest) => volume),
        ...volumeClaimTemplates.map(({ metadata }: Manifest) => metadata.name),
      ];
      const mounted = container.volumeMounts.map(({ name: volume }: Manifest) => volume);
      assert.deepEqual(mounted.toSorted(), volumes.toSorted(), name);
    }
  });

  it('gives Prometheus the name of the job that the alerts and the dashboard expect, in place of that of the Service', () => {
    const manifests = shapes.get('SQLite, everything') ?? [];
    const monitor = manifests.find(({ kind }) => kind === 'ServiceMonitor');
    const service = manifests.find(({ kind }) => kind === 'Service');
    assert.equal(service?.metadata.labels[monitor?.spec.jobLabel], 'quayside');
  });

  it('runs one node with a volume for SQLite, and several nodes with a disruption budget for other engines', () => {
    for (const [name, manifests] of shapes) {
      const isSqlite = name.startsWith('SQLite');
      const kinds = manifests.map(({ kind }) => kind);
      assert.equal(kinds.includes('StatefulSet'), isSqlite, name);
      assert.equal(kinds.includes('PodDisruptionBudget'), !isSqlite, name);
      assert.equal(kinds.includes('ServiceMonitor'), name.endsWith('everything'), name);
    }
    const replicas = workloads().map(([, { spec }]) => spec.replicas);
    assert.deepEqual(replicas, [1, 1, 3, 5]);
  });

  it('rejects unknown values and values that cannot work', async () => {
    const wrong: [object, RegExp][] = [
      [{}, /secrets\.name: String length/],
      [{ secrets: SECRETS, replica: 2 }, /replica is not allowed/],
      [{ secrets: SECRETS, engine: 'redis' }, /engine must be one of/],
      [{ secrets: SECRETS, engine: 'server' }, /secrets\.urls is empty/],
      [
        {
          secrets: { ...SECRETS, urls: { N: 'url' } },
          engine: 'server',
          config: { namespaces: { jobs: {} } },
        },
        /Namespace "jobs" has no address/,
      ],
      [{ secrets: { ...SECRETS, users: { 'a b': 'key' } } }, /"a b" cannot be a part/],
      [{ secrets: SECRETS, serviceMonitor: { enabled: true } }, /basicAuth\.secretName is required/],
    ];
    const rendered = await render(wrong.map(([values]) => values));
    for (const [at, [values, message]] of wrong.entries())
      assert.match(rendered[at]?.error ?? '', message, JSON.stringify(values));
  });
});
