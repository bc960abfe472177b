import { validateHeaderName, validateHeaderValue } from 'node:http';
import { hostname } from 'node:os';
import type { NamespaceSetup } from '../broker/ports.ts';
import type { ErrorAt } from '../config/errors.ts';
import type { Config } from '../config/options.ts';
import type { Storage } from '../engine/storage.ts';
import { type CollectorAddress, SpanExporter } from '../tracing/exporter.ts';
import { TracedStorage } from '../tracing/traced-storage.ts';
import { Tracer } from '../tracing/tracer.ts';
import type { Clock } from '../util/clock.ts';
import type { LeveledLog } from '../util/log.ts';
import { hasRawUserInfo } from '../util/mask.ts';

type TracingConfig = NonNullable<Config['tracing']>;

interface TracingParts {
  readonly clock: Clock;
  readonly random: () => number;
  readonly log: LeveledLog;
  readonly version: string;
  readonly errorAt: ErrorAt;
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

/** @throws ConfigError */
export function openTracing(config: TracingConfig, parts: TracingParts): Tracing {
  const { clock, random, log, version, errorAt } = parts;
  const exporter = new SpanExporter({
    collector: collectorOf(config, errorAt),
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

function collectorOf({ otlp, headers }: TracingConfig, errorAt: ErrorAt): CollectorAddress {
  const url = hasRawUserInfo(otlp) ? null : URL.parse(otlp);
  const credentials = url === null ? null : credentialsOf(url);
  if (url === null || credentials === null) {
    throw errorAt(
      ['tracing', 'otlp'],
      'is not a URL',
      'Write it as http://localhost:4318, and percent-encode a password',
    );
  }
  if (url.pathname === '/') url.pathname = TRACES_PATH;
  [url.username, url.password] = ['', ''];
  const authorization = `Basic ${Buffer.from(credentials).toString('base64')}`;
  return {
    url,
    headers: { ...(credentials !== ':' && { authorization }), ...checkedHeaders(headers, errorAt) },
  };
}

/** User and password, joined by a colon; null if their percent-encoding is invalid. */
function credentialsOf({ username, password }: URL): string | null {
  try {
    return `${decodeURIComponent(username)}:${decodeURIComponent(password)}`;
  } catch {
    return null;
  }
}

/** Headers that belong to the connection: `fetch` ignores `Host`, and fails with others. */
const OF_CONNECTION: ReadonlySet<string> = new Set([
  'host',
  'content-length',
  'expect',
  'keep-alive',
  'transfer-encoding',
  'upgrade',
]);

/**
 * Validates headers early: an invalid one would make every request fail. Returns them by their names in lower case:
 * `fetch` joins the values of names that differ in case.
 */
function checkedHeaders(
  headers: TracingConfig['headers'],
  errorAt: ErrorAt,
): Readonly<Record<string, string>> {
  const checked: Record<string, string> = {};
  for (const [name, value] of Object.entries(headers)) {
    const lowerCase = name.toLowerCase();
    if (OF_CONNECTION.has(lowerCase)) {
      throw errorAt(
        ['tracing', 'headers', name],
        'is a header that the server sets itself',
        'Leave it out; the address of the collector is tracing.otlp',
      );
    }
    checked[lowerCase] = value;
    try {
      validateHeaderName(name);
      validateHeaderValue(name, value);
    } catch {
      throw errorAt(
        ['tracing', 'headers', name],
        'is no header that can be sent',
        'Use letters, digits and - in its name, and no control characters in its value',
      );
    }
  }
  return checked;
}
