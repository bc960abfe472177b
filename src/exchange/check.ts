import type { Namespace } from '../broker/namespace.ts';
import { invalidParameter, type QuaysideError } from '../model/errors.ts';
import { quote } from '../util/quote.ts';
import type { Asker } from './asker.ts';
import { type Declaration, pathWithin } from './declaration.ts';
import type { ExchangesOptions } from './exchanges.ts';

/**
 * Whether a declaration could be created on this node.
 * @param within the member of the body that it is, for the paths; '' where it is the body
 * @throws QuaysideError `invalid-parameter` with the path of the field, `invalid-body` for a selector
 */
export async function checkDeclaration(
  { src, dst, consumer }: Declaration,
  options: Pick<ExchangesOptions, 'broker' | 'sandbox' | 'selectors'>,
  { name }: Asker,
  within = '',
): Promise<void> {
  const source = namespaceAt(options, src.ns, pathWithin(within, 'src.ns'));
  for (const [i, { ns }] of dst.entries()) namespaceAt(options, ns, pathWithin(within, `dst[${i}].ns`));
  if (consumer.reserve === true && !source.capabilities.reserve) throw cannotReserve(source, within);
  checkRepeated(dst, within);
  const selectors = dst.flatMap(({ selector }, i) =>
    selector === undefined ? [] : [{ source: selector, path: pathWithin(within, `dst[${i}].selector`) }],
  );
  if (selectors.length === 0) return;
  mustRunSelectors(dst, options, within);
  await options.sandbox.check(selectors, name);
}

/**
 * The same destination twice without a selector is a mistake, or an attack: each element would be stored there twice.
 * Stored exchanges are not checked for it.
 */
function checkRepeated(dst: Declaration['dst'], within: string): void {
  const first = new Map<string, number>();
  for (const [i, { ns, queue, selector }] of dst.entries()) {
    if (selector !== undefined) continue;
    const name = JSON.stringify([ns, queue]);
    const before = first.get(name);
    if (before !== undefined) {
      const path = pathWithin(within, `dst[${i}]`);
      const other = pathWithin(within, `dst[${before}]`);
      throw invalidParameter(
        path,
        `${path} is queue ${quote(queue)} of namespace ${quote(ns)}, as ${other} is. Without selectors, a queue can be a destination once.`,
      );
    }
    first.set(name, i);
  }
}

/**
 * Whether this server runs the selectors of a declaration, also of a stored one.
 * @throws QuaysideError `invalid-parameter` with the path of the first selector
 */
export function mustRunSelectors(
  dst: Declaration['dst'],
  { selectors }: Pick<ExchangesOptions, 'selectors'>,
  within = '',
): void {
  const first = dst.findIndex(({ selector }) => selector !== undefined);
  if (selectors || first < 0) return;
  const path = pathWithin(within, `dst[${first}].selector`);
  throw invalidParameter(path, `${path}: this server runs with selectors: off.`);
}

/**
 * Whether the namespaces have room for the queues of a new exchange: one that is stored has its queues already.
 * @throws QuaysideError `too-many-queues`
 */
export function checkRoom({ src, dst }: Declaration, { broker }: Pick<ExchangesOptions, 'broker'>): void {
  for (const { ns, queue } of [src, ...dst]) broker.namespace(ns).queue(queue);
}

/** The refusal of `reserve: true` on a source that has no reservations. */
export function cannotReserve({ name }: Pick<Namespace, 'name'>, within = ''): QuaysideError {
  const path = pathWithin(within, 'consumer.reserve');
  return invalidParameter(
    path,
    `${path}: queues of namespace ${name} do not support reservations; leave it out, and elements are popped.`,
  );
}

function namespaceAt({ broker }: Pick<ExchangesOptions, 'broker'>, ns: string, path: string): Namespace {
  try {
    return broker.namespace(ns);
  } catch {
    throw noNamespace(path, ns);
  }
}

/** The refusal of a declaration that names a namespace which is not there. */
export function noNamespace(path: string, ns: string): QuaysideError {
  return invalidParameter(path, `${path}: there is no namespace ${quote(ns)}.`);
}
