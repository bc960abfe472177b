import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, describe, it } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parse } from 'yaml';
import { ERROR_CODES } from '../../src/model/errors.ts';
import { needDebian } from '../support/debian.ts';
import { jsonOf, QueueClient } from '../support/http-client.ts';
import { PrometheusServer } from '../support/prometheus-server.ts';
import { selectorsOf } from '../support/promql.ts';
import { ServerProcess } from '../support/server-process.ts';
import { until } from '../support/until.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const RULES = path.join(ROOT, 'ops/prometheus/rules.yaml');
const CASES = path.join(ROOT, 'ops/prometheus/rules.test.yaml');
const DASHBOARD = path.join(ROOT, 'ops/grafana/dashboard.json');
const PAGE = path.join(ROOT, 'docs/operate/alerts.md');

/** A configuration with all features that have metrics. */
const CONFIG = {
  http: { users: { test1: 'test1' } },
  stomp: { port: 0 },
  amqp: { port: 0 },
  metrics: { perQueue: true },
  // Nothing listens there, but the series exist.
  tracing: { otlp: 'http://127.0.0.1:10', ratio: 0 },
  namespaces: { N: { url: 'sqlite:N.db', deadLetter: { maxTries: 3 } } },
  exchanges: { x1: { src: { ns: 'N', queue: 'src' }, dst: [{ ns: 'N', queue: 'to' }] } },
};

/** A limit for a panel that never has data; two scrapes are enough. */
const SCRAPES = 60;

interface Rule {
  readonly alert: string;
  readonly expr: string;
  readonly annotations: { readonly summary: string; readonly runbook: string };
}

interface Cases {
  readonly tests: readonly {
    readonly input_series: readonly { readonly series: string }[];
    readonly alert_rule_test: readonly {
      readonly alertname: string;
      readonly exp_alerts: readonly unknown[];
    }[];
  }[];
}

interface Panel {
  readonly id: number;
  readonly type: string;
  readonly title: string;
  readonly gridPos: { readonly x: number; readonly y: number; readonly w: number };
  readonly targets?: readonly { readonly expr: string; readonly legendFormat: string }[];
}

interface Dashboard {
  readonly panels: readonly Panel[];
  readonly templating: { readonly list: readonly { readonly name: string; readonly definition?: string }[] };
}

/** The label values by metric and label. */
type Series = Map<string, Map<string, Set<string>>>;

describe('The Prometheus setup', () => {
  let server: ServerProcess;
  let series: Series;
  let rules: readonly Rule[];
  let cases: Cases;
  let dashboard: Dashboard;
  let folder: string;

  before(async () => {
    needDebian('prometheus');
    folder = await mkdtemp(path.join(tmpdir(), 'quayside-prometheus-'));
    server = await ServerProcess.start({ config: CONFIG });
    const client = new QueueClient({ url: server.url });
    try {
      await startSlowOperation(client);
      series = seriesOf((await client.request('GET', '/metrics')).body.toString('utf8'));
    } finally {
      client.close();
    }
    const [group] = (parse(await readFile(RULES, 'utf8')) as { groups: { rules: Rule[] }[] }).groups;
    rules = group?.rules ?? [];
    cases = parse(await readFile(CASES, 'utf8')) as Cases;
    dashboard = JSON.parse(await readFile(DASHBOARD, 'utf8')) as Dashboard;
  });

  after(async () => {
    await server?.dispose();
    if (folder !== undefined) await rm(folder, { recursive: true });
  });

  /** Rejects with promtool's output if it cannot parse an expression. */
  const checkSyntax = async (expressions: readonly string[]): Promise<void> => {
    const file = path.join(folder, 'expressions.yaml');
    const recorded = expressions.map((expr, i) => ({ record: `expression:${i}`, expr }));
    await writeFile(file, JSON.stringify({ groups: [{ name: 'expressions', rules: recorded }] }));
    promtool('check', 'rules', file);
  };

  it('has rules that promtool accepts and that pass their test cases', () => {
    promtool('check', 'rules', RULES);
    promtool('test', 'rules', CASES);
  });

  it('has for each alert a test case in which it fires, and one in which it does not', () => {
    const tests = cases.tests.flatMap((one) => one.alert_rule_test);
    const named = (fires: boolean) =>
      new Set(tests.filter((one) => one.exp_alerts.length > 0 === fires).map((one) => one.alertname));
    const alerts = new Set(rules.map(({ alert }) => alert));
    assert.ok(alerts.size > 10);
    assert.deepEqual(named(true), alerts);
    assert.deepEqual(named(false), alerts);
  });

  it('has rules and test cases that use only series of a real server', async () => {
    for (const { alert, expr } of rules) assertKnown(expr, series, alert);
    const inputs = cases.tests.flatMap((one) => one.input_series.map((input) => input.series));
    for (const input of inputs) assertKnown(input, series, 'a case of rules.test.yaml');
  });

  it('has a dashboard with valid expressions that use only series of a real server', async () => {
    const targets = dashboard.panels.flatMap(({ title, targets = [] }) =>
      targets.map(({ expr, legendFormat }) => ({ title, expr: withoutVariables(expr), legendFormat })),
    );
    assert.ok(targets.length > 40);
    await checkSyntax(targets.map(({ expr }) => expr));
    for (const { title, expr, legendFormat } of targets) {
      const labels = assertKnown(expr, series, title);
      for (const [, label = ''] of legendFormat.matchAll(/\{\{(\w+)\}\}/g))
        assert.ok(labels.has(label), `${title}: the result of ${expr} has no label ${label}`);
    }
  });

  it('has a dashboard whose every panel has data in a real Prometheus', async () => {
    const prometheus = await PrometheusServer.start(server.url, 'test1:test1');
    const client = new QueueClient({ url: server.url });
    try {
      // Two panels show only problems.
      await client.pause('N', 'paused');
      const expressions = [
        ...dashboard.panels.flatMap(({ targets = [] }) => targets.map(({ expr }) => expr)),
        ...dashboard.templating.list.flatMap(({ definition = '' }) => {
          const [, metric, label] = /^label_values\((\w+), (\w+)\)$/.exec(definition) ?? [];
          return metric === undefined ? [] : [`group by (${label}) (${metric})`];
        }),
      ];
      let empty = expressions.map((expr) => withoutVariables(expr).replaceAll('$namespace', '.+'));
      assert.ok(empty.length > 50);
      // A rate needs two scrapes, which are one second apart.
      for (let left = SCRAPES; empty.length > 0 && left > 0; left -= 1, await delay(1_000)) {
        await client.commit('N', 'q', 'none');
        const results = await Promise.all(empty.map((expr) => prometheus.query(expr)));
        empty = empty.filter((_, i) => results[i]?.length === 0);
      }
      assert.deepEqual(empty, []);
    } finally {
      client.close();
      await prometheus.stop();
    }
  });

  it('has a dashboard that shows every metric of a server', () => {
    const shown = new Set(
      dashboard.panels.flatMap(({ targets = [] }) =>
        targets.flatMap(({ expr }) =>
          selectorsOf(withoutVariables(expr)).selectors.map(({ metric }) => metric),
        ),
      ),
    );
    // The buckets of a histogram are enough.
    const wanted = [...series.keys()].filter((metric) => !/_(sum|count)$/.test(metric));
    assert.deepEqual(
      wanted.filter((metric) => !shown.has(metric)),
      [],
    );
  });

  it('has a dashboard without duplicate positions or ids, and with declared variables only', () => {
    const { panels, templating } = dashboard;
    const places = panels.map(({ gridPos: { x, y } }) => `${x}, ${y}`);
    assert.equal(new Set(places).size, panels.length);
    assert.equal(new Set(panels.map(({ id }) => id)).size, panels.length);
    assert.ok(panels.every(({ gridPos: { x, w } }) => x + w <= 24));
    assert.deepEqual(
      panels.filter(({ type }) => type === 'row').map(({ title }) => title),
      ['Overview', 'Queues', 'Engines', 'Nodes', 'Exchanges and bulk operations', 'Protocols'],
    );
    const known = new Set(['__rate_interval', ...templating.list.map(({ name }) => name)]);
    const used = [...JSON.stringify(panels).matchAll(/\$\{?(\w+)/g)].map(([, name = '']) => name);
    assert.deepEqual(
      used.filter((name) => !known.has(name)),
      [],
    );
    for (const { definition = '' } of templating.list) {
      const [, metric = '', label = ''] = /^label_values\((\w+), (\w+)\)$/.exec(definition) ?? [];
      if (definition !== '') assert.ok(series.get(metric)?.has(label), definition);
    }
  });

  it('is tested by checks that find unknown series and syntax errors', async () => {
    for (const wrong of [
      'quayside_queue',
      'sum(rate(quayside_element{namespace="N"}[5m]))',
      'quayside_elements{ns="N"}',
      'quayside_elements{state="delayed"}',
      'quayside_operations_total{outcome=~"ok|queue-ful"}',
      'sum by (queue) (quayside_elements)',
    ]) {
      assert.throws(() => assertKnown(wrong, series, 'test'), /quayside_/, wrong);
    }
    await assert.rejects(checkSyntax(['sum by namespace (quayside_elements)']), /parse error/);
  });

  it('has a page with a section for each alert, which the alert links', async () => {
    const sections = (await readFile(PAGE, 'utf8')).split(/^## /m).slice(1);
    const described = sections.filter((section) => section.startsWith('Quayside'));
    assert.deepEqual(
      described.map((section) => section.split('\n')[0]),
      rules.map(({ alert }) => alert),
    );
    for (const section of described) {
      const parts = [...section.matchAll(/^\*\*(\w+)\.\*\* \S/gm)].map(([, part]) => part);
      assert.deepEqual(parts, ['Meaning', 'Cause', 'Action'], section);
    }
    for (const { alert, annotations } of rules)
      assert.equal(annotations.runbook, `docs/operate/alerts.md#${alert.toLowerCase()}`);
  });
});

/** Starts an operation that deletes one element per second, so that it runs as long as the tests. */
async function startSlowOperation(client: QueueClient): Promise<void> {
  await client.insertLines(
    'N',
    'q',
    Array.from({ length: 1_000 }, () => ({ text: 'x' })),
  );
  const body = JSON.stringify({ action: 'delete', source: { ns: 'N', queue: 'q' }, rate: 1 });
  const headers = { 'content-type': 'application/json' };
  const { location = '' } = (await client.request('POST', '/operations', { body, headers })).headers;
  await until(async () => {
    const record = jsonOf<{ changed: number; state: string }>(await client.request('GET', String(location)));
    assert.equal(record.state, 'running');
    return record.changed > 0;
  }, 20);
}

/** Replaces Grafana's interval variable; its other variables occur only in strings. */
function withoutVariables(expression: string): string {
  return expression.replaceAll('$__rate_interval', '5m');
}

/** Runs promtool. @throws Error with its output if it fails */
function promtool(...args: readonly string[]): string {
  return execFileSync('promtool', args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] });
}

function seriesOf(text: string): Series {
  const series: Series = new Map([['up', new Map()]]);
  for (const [, name = '', labels = ''] of text.matchAll(/^([a-z_]+)(?:\{(.*)\})? \S+$/gm)) {
    const known = series.get(name) ?? new Map<string, Set<string>>();
    series.set(name, known);
    for (const [, label = '', value = ''] of labels.matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/g))
      known.set(label, (known.get(label) ?? new Set()).add(value));
  }
  return series;
}

/** Labels that Prometheus adds to scraped series. */
const SCRAPE_LABELS = ['job', 'instance'];

/** Labels whose values the server defines; the values of other labels are names that users choose. */
const ENUMERATED_LABELS = new Set(['outcome', 'state', 'operation', 'protocol', 'le']);

/**
 * Returns the labels that the result may have.
 * @throws AssertionError if the expression uses metrics or labels that no server has
 */
function assertKnown(expression: string, series: Series, where: string): ReadonlySet<string> {
  const { selectors, grouping } = selectorsOf(expression);
  assert.ok(selectors.length > 0, `${where}: ${expression} has no metric`);
  const allLabels = new Set(SCRAPE_LABELS);
  for (const { metric, matchers } of selectors) {
    const labels = series.get(metric);
    assert.ok(labels !== undefined, `${where}: no server has the metric ${metric}`);
    for (const label of labels.keys()) allLabels.add(label);
    for (const { label, values } of matchers) {
      if (SCRAPE_LABELS.includes(label)) continue;
      const known = labels.get(label);
      assert.ok(known !== undefined, `${where}: ${metric} has no label ${label}`);
      if (!ENUMERATED_LABELS.has(label)) continue;
      for (const value of values) {
        // A rare error has no series before it occurs.
        const isCode = metric === 'quayside_operations_total' && ERROR_CODES.some((code) => code === value);
        assert.ok(known.has(value) || isCode, `${where}: ${metric} has no ${label}="${value}"`);
      }
    }
  }
  for (const label of grouping)
    assert.ok(allLabels.has(label), `${where}: no metric of ${expression} has the label ${label}`);
  return grouping.length > 0 ? new Set(grouping) : allLabels;
}
