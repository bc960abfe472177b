import type { Namespace } from '../broker/namespace.ts';
import type { DiskUsage } from '../engine/engine.ts';
import type { Clock } from '../util/clock.ts';
import type { Picture, PictureSource } from './pictures.ts';

/** An engine that stores files on a disk of this machine. */
export interface WatchedDisk {
  /** Its masked URL. */
  readonly engine: string;
  readonly usage: () => Promise<DiskUsage>;
}

interface AlarmParts {
  readonly namespaces: readonly Namespace[];
  /** `ok`, or what is wrong, by the masked URL of each engine: as `/readyz` shows them. */
  readonly engineChecks: () => Promise<Readonly<Record<string, string>>>;
  readonly disks: readonly WatchedDisk[];
  readonly clock: Pick<Clock, 'now'>;
}

const OK = 'ok';

/** What an operator should look at. It rests on what `/readyz`, metrics and statuses know as well. */
export class Alarms implements PictureSource {
  readonly kind = 'alarms';
  readonly #parts: AlarmParts;
  /** Since when each alarm holds, by its key. */
  #since = new Map<string, number>();

  constructor(parts: AlarmParts) {
    this.#parts = parts;
  }

  async read(): Promise<Picture[]> {
    const [engines, disks] = await Promise.all([this.#engines(), this.#disks()]);
    const since = new Map<string, number>();
    const pictures = [...engines, ...disks, ...this.#deadLetters()].map((alarm) => {
      const at = this.#since.get(alarm.key) ?? this.#parts.clock.now();
      since.set(alarm.key, at);
      return pictureOf(alarm, at);
    });
    this.#since = since;
    return pictures;
  }

  async #engines(): Promise<Alarm[]> {
    const checks = await this.#parts.engineChecks();
    return Object.entries(checks).flatMap(([engine, check]) =>
      check === OK ? [] : [this.#ofEngine('engine-unavailable', engine, { detail: check })],
    );
  }

  async #disks(): Promise<Alarm[]> {
    const alarms = this.#parts.disks.map(async ({ engine, usage }): Promise<Alarm[]> => {
      const found = await usage().catch(() => null);
      if (found === null || found.freeBytes >= found.minFreeBytes) return [];
      return [this.#ofEngine('disk-nearly-full', engine, {})];
    });
    return (await Promise.all(alarms)).flat();
  }

  #deadLetters(): Alarm[] {
    return this.#parts.namespaces.flatMap((namespace) =>
      namespace.deadLetterQueues.flatMap((queue) => deadLettersGrew(namespace, queue)),
    );
  }

  /** Of an engine, for those who may see a namespace that needs it. */
  #ofEngine(alarm: string, engine: string, more: object): Alarm {
    const namespaces = this.#parts.namespaces
      .filter(({ engineUrls }) => engineUrls.includes(engine))
      .map(({ name }) => name);
    return {
      alarm,
      key: JSON.stringify([alarm, engine]),
      named: { engine },
      more,
      places: namespaces.map((ns) => ({ ns, queue: null })),
      isFor: (viewer) => namespaces.some((ns) => viewer.maySee(ns)),
      namespaces,
    };
  }
}

/** Whether dead letters came to a queue in the last five minutes. */
function deadLettersGrew({ name: ns, activity }: Namespace, queue: string): Alarm[] {
  const last = activity.last(queue);
  const rates = last === null ? null : activity.rates(queue, last.totals);
  if (last === null || rates === null || rates['5m'].insert === 0) return [];
  const { ready, scheduled, reserved } = last.counts;
  const place = { ns, queue };
  return [
    {
      alarm: 'dead-letters-grew',
      key: JSON.stringify(['dead-letters-grew', ns, queue]),
      named: place,
      more: { totalSize: ready + scheduled + reserved },
      places: [place],
      isFor: (viewer) => viewer.may('read', ns),
      namespaces: null,
    },
  ];
}

interface Alarm extends Pick<Picture, 'key' | 'places' | 'isFor'> {
  readonly alarm: string;
  /** What it is about. */
  readonly named: object;
  readonly more: object;
  /** The namespaces that an engine serves; null: it is about a queue. */
  readonly namespaces: readonly string[] | null;
}

function pictureOf({ alarm, named, more, namespaces, ...rest }: Alarm, since: number): Picture {
  const shown = { alarm, ...named, since: new Date(since).toISOString(), ...more };
  return {
    ...rest,
    kind: 'alarms',
    state: JSON.stringify(shown),
    json: (viewer) =>
      JSON.stringify(
        namespaces === null ? shown : { ...shown, namespaces: namespaces.filter((ns) => viewer.maySee(ns)) },
      ),
    goneJson: () => JSON.stringify({ alarm, ...named, gone: true }),
  };
}
