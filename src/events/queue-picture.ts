import type { Namespace } from '../broker/namespace.ts';
import type { QueueReading } from '../broker/queue-series.ts';
import { shownSizes } from '../broker/record.ts';
import type { Picture } from './picture.ts';

/** A queue: its counts under the names of the queue information record. Its age follows from `next_mature_t`. */
export function queuePicture(namespace: Namespace, name: string, { counts, totals }: QueueReading): Picture {
  const ns = namespace.name;
  const named = { ns, queue: name };
  const json = JSON.stringify({
    ...named,
    ...shownSizes(counts),
    paused: namespace.isPaused(name),
    stats: totals,
  });
  return {
    kind: 'queues',
    key: JSON.stringify([ns, name]),
    places: [named],
    state: json,
    isFor: (viewer) => viewer.may('read', ns),
    json: () => json,
    goneJson: () => JSON.stringify({ ...named, gone: true }),
  };
}
