import { payloadKind } from './kinds.ts';
import type { SandboxLimits } from './limits.ts';
import type { PackedBodies, PackedElements } from './protocol.ts';
import type { SelectorInput } from './sandbox.ts';

/** How many elements from `from` on go into one call. */
export function callSize(
  elements: readonly SelectorInput[],
  from: number,
  limits: Pick<SandboxLimits, 'batch' | 'batchBodyBytes'>,
  withBodies: boolean,
): number {
  const most = Math.min(elements.length - from, limits.batch);
  if (!withBodies) return most;
  let bytes = 0;
  for (let count = 0; count < most; count += 1) {
    bytes += (elements[from + count] as SelectorInput).body.length;
    if (bytes > limits.batchBodyBytes && count > 0) return count;
  }
  return most;
}

export function packElements(
  elements: readonly SelectorInput[],
  from: number,
  count: number,
  withBodies: boolean,
): PackedElements {
  let input = '[';
  for (let at = from; at < from + count; at += 1) {
    input += (at === from ? '' : ',') + packElement(elements[at] as SelectorInput);
  }
  const bodies = withBodies ? packBodies(elements.slice(from, from + count)) : null;
  return { count, input: `${input}]`, bodies };
}

/** JSON by hand: for objects this small half the cost of building them first. */
function packElement(element: SelectorInput): string {
  const { headers } = element;
  let pairs = '';
  for (let at = 0; at + 1 < headers.length; at += 2) {
    pairs += `${at === 0 ? '' : ','}${JSON.stringify(headers[at])}:${JSON.stringify(headers[at + 1])}`;
  }
  const kind = payloadKind(element.contentType, element.contentEncoding);
  return `[${JSON.stringify(element.id)},${element.tries},${element.matureAt / 1000},${kind},{${pairs}}]`;
}

function packBodies(elements: readonly SelectorInput[]): PackedBodies {
  let total = 0;
  const ends = elements.map((element) => {
    total += element.body.length;
    return total;
  });
  const bytes = new Uint8Array(total);
  for (const [at, element] of elements.entries())
    bytes.set(element.body, (ends[at] as number) - element.body.length);
  return {
    bytes,
    ends,
    kinds: elements.map(({ contentType, contentEncoding }) => payloadKind(contentType, contentEncoding)),
  };
}
