import { hostname } from 'node:os';
import type { NamespaceSetup } from '../broker/ports.ts';
import type { Config } from '../config/options.ts';
import type { Storage } from '../engine/storage.ts';
import { type CollectorAddress, SpanExporter } from '../tracing/exporter.ts';
import { TracedStorage } from '../tracing/traced-storage.ts';
import { Tracer } from '../tracing/tracer.ts';
import type { Clock } from '../util/clock.ts';
import type { LeveledLog } from '../util/log.ts';

type TracingConfig = NonNullable<Config['tracing']>;

interface TracingParts {
  readonly clock: Clock;
  readonly random: () => number;
  readonly log: LeveledLog;
  readonly version: string;
}

/** Creates and exports spans. */
export interface Tracing {
  readonly tracer: Tracer;
  readonly exporter: SpanExporter;
  /** Wraps the storages of namespaces, so that their calls create spans. */
  trace(setups: readonly NamespaceSetup[]): NamespaceSetup[];
}

/** Default path of the OTLP specification. */
const TRACES_PATH = '/v1/traces';

export function openTracing(config: TracingConfig, parts: TracingParts): Tracing {
  const { clock, random, log, version } = parts;
  const exporter = new SpanExporter({
    collector: collectorOf(config),
    resource: {
      version,
      attributes: {
        'service.name': config.service,
        'service.version': version,
        'service.instance.id': `${hostname()}-${process.pid}`,
        'host.name': hostname(),
        'process.pid': process.pid,
      },
    },
    maxQueue: config.maxQueue,
    clock,
    random,
    log,
  });
  const tracer = new Tracer({ clock, ratio: config.ratio, onEnd: (span) => exporter.add(span) });
  return { tracer, exporter, trace: (setups) => traced(setups, tracer) };
}

/**
 * Namespaces that share a storage must also share its wrapper: the broker compares storages to decide whether a
 * transfer can be atomic.
 */
function traced(setups: readonly NamespaceSetup[], tracer: Tracer): NamespaceSetup[] {
  const storages = new Map<Storage, TracedStorage>();
  return setups.map((setup) => {
    const { storage, type } = setup;
    const [engine = type] = type.split(':');
    const tracedStorage = storages.get(storage) ?? new TracedStorage(storage, engine, tracer);
    storages.set(storage, tracedStorage);
    return { ...setup, storage: tracedStorage };
  });
}

/** The address of the collector, which the configuration has checked. */
function collectorOf({ otlp, headers }: TracingConfig): CollectorAddress {
  const url = new URL(otlp);
  if (url.pathname === '/') url.pathname = TRACES_PATH;
  const { username, password } = url;
  const credentials = `${decodeURIComponent(username)}:${decodeURIComponent(password)}`;
  const authorization = `Basic ${Buffer.from(credentials).toString('base64')}`;
  [url.username, url.password] = ['', ''];
  // `fetch` joins the values of names that differ in case.
  const given = Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]);
  return { url, headers: { ...(credentials !== ':' && { authorization }), ...Object.fromEntries(given) } };
}
