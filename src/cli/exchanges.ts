import type { ExchangeRecord } from '../model/records.ts';
import { quote } from '../util/quote.ts';
import { type CommandContext, CommandUsageError } from './context.ts';
import { EXIT_CODES } from './output.ts';

/** Lists exchanges, or applies a verb to the exchange with this id. */
export async function exchange(
  context: CommandContext,
  verb: string,
  id: string | undefined,
): Promise<number> {
  if (verb === 'list') {
    if (id !== undefined)
      throw new CommandUsageError('exchange list takes no id. To see one exchange, use show.');
    const all = Object.entries(await context.json<Record<string, ExchangeRecord>>('GET', '/x'));
    await context.printRecords(
      all.map(([key, record]) => ({ id: key, ...record })),
      ({ id: key, src, dst, stopped }) => ({
        id: key,
        from: `${src.ns}/${src.q}`,
        to: dst.map(({ ns, q }) => `${ns}/${q}`).join(', '),
        stopped,
      }),
      'no exchanges',
    );
    return EXIT_CODES.done;
  }
  const call = CALLS.get(verb);
  if (call === undefined && verb !== 'show') {
    throw new CommandUsageError(
      `exchange ${quote(verb)} is not known. Allowed: ${EXCHANGE_VERBS.join(', ')}.`,
    );
  }
  if (id === undefined) throw new CommandUsageError(`exchange ${verb} needs the id of an exchange.`);
  const path = `/x/${encodeURIComponent(id)}`;
  if (call === undefined) {
    const record = await context.json<ExchangeRecord>('GET', path);
    await context.print(record, () => JSON.stringify(record, null, 2));
    return EXIT_CODES.done;
  }
  const body = verb === 'create' ? { body: await context.input() } : {};
  await context.call(call.method, `${path}${call.path}`, { ...body, isRepeatable: true });
  context.hasChanged = true;
  await context.print({ id, [call.done]: true }, () => `${call.done} ${id}`);
  return EXIT_CODES.done;
}

const CALLS: ReadonlyMap<string, { method: 'PUT' | 'DELETE'; path: string; done: string }> = new Map([
  ['create', { method: 'PUT', path: '', done: 'created' }],
  ['start', { method: 'PUT', path: '/start', done: 'started' }],
  ['stop', { method: 'PUT', path: '/stop', done: 'stopped' }],
  ['delete', { method: 'DELETE', path: '', done: 'deleted' }],
]);

export const EXCHANGE_VERBS = ['list', 'show', ...CALLS.keys()];
