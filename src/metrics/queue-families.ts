import type { Namespace } from '../broker/namespace.ts';
import type { Family, Sample } from './family.ts';

/**
 * Queues with series of their own, in all namespaces together, by the order of the configuration and then
 * of their names. More would make each scrape, and the memory of whoever scrapes, grow with what clients
 * name; `quayside_queues` shows how many there are.
 */
export const QUEUES_SHOWN = 1000;

/** What the namespaces hold, asked from their engines. An engine that is away leaves its series out. */
export async function queueFamilies(namespaces: readonly Namespace[]): Promise<Family[]> {
  const counted = await Promise.all(namespaces.map(namesOf));
  let left = QUEUES_SHOWN;
  const elements: Promise<Sample[]>[] = [];
  for (const { namespace, names } of counted) {
    const shown = names?.slice(0, left) ?? [];
    left -= shown.length;
    elements.push(...shown.map((name) => elementSamples(namespace, name)));
  }
  return [
    {
      name: 'quayside_queue_elements',
      help: `Elements by queue and state, for the first ${QUEUES_SHOWN} queues.`,
      type: 'gauge',
      samples: (await Promise.all(elements)).flat(),
    },
    {
      name: 'quayside_queues',
      help: 'Queues of a namespace.',
      type: 'gauge',
      samples: counted.flatMap(({ namespace, names }) =>
        names === null ? [] : [ofNamespace(namespace, names.length)],
      ),
    },
    {
      name: 'quayside_storage_up',
      help: 'Whether the engine of a namespace answered this scrape.',
      type: 'gauge',
      samples: counted.map(({ namespace, names }) => ofNamespace(namespace, names === null ? 0 : 1)),
    },
  ];
}

interface Counted {
  readonly namespace: Namespace;
  /** Null where the engine is away. */
  readonly names: readonly string[] | null;
}

function namesOf(namespace: Namespace): Promise<Counted> {
  return namespace.queueNames().then(
    (names) => ({ namespace, names }),
    () => ({ namespace, names: null }),
  );
}

async function elementSamples(namespace: Namespace, queue: string): Promise<Sample[]> {
  try {
    const { ready, scheduled, reserved } = await namespace.storage.sizes({ ns: namespace.name, name: queue });
    return Object.entries({ ready, scheduled, reserved }).map(([state, value]) => ({
      labels: { namespace: namespace.name, queue, state },
      value,
      namespaces: [namespace.name],
    }));
  } catch {
    return [];
  }
}

function ofNamespace({ name }: Namespace, value: number): Sample {
  return { labels: { namespace: name }, value, namespaces: [name] };
}
