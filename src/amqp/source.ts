import rhea, { type Sender, type Source, type Typed } from 'rhea';
import { QuaysideError } from '../model/errors.ts';
import { groupOf } from '../session/values.ts';
import { quote } from '../util/quote.ts';
import { type Address, parseAddress } from './address.ts';
import { addressOf } from './link.ts';

/** The filter by which a source names the group to read as. */
const GROUP_FILTER = 'x-ks-group';

/** `modified` with `delivery-failed`; the types of rhea leave outcomes out. */
const FAILED = (rhea.message as unknown as { modified(fields: object): { described(): Typed } })
  .modified({ delivery_failed: true })
  .described();

/** What the source of a link asks for. */
export interface SourceRequest extends Address {
  /** As the client wrote it. */
  readonly address: string;
}

/**
 * Reads the source of a link by which a client receives.
 * @throws QuaysideError `invalid-name`, `invalid-parameter`, `not-supported`
 */
export function readSource(sender: Sender): SourceRequest {
  const { source } = sender;
  const address = addressOf(source);
  if (source.distribution_mode === 'copy') {
    throw notSupported(
      'distribution-mode',
      'distribution-mode is "copy", but elements cannot be browsed. Allowed: move.',
    );
  }
  const request = { address, ...parseAddress(address) };
  const group = readGroup((source as { filter?: unknown }).filter);
  return group === null ? request : { ...request, group };
}

/** Tells the client which source it got. */
export function answerSource(sender: Sender, { address }: SourceRequest): void {
  const { filter } = sender.source as { filter?: unknown };
  const fields: object = {
    address,
    distribution_mode: 'move',
    ...(filter === null || filter === undefined ? {} : { filter }),
    // What the client received and did not settle when the link goes is a failed try.
    default_outcome: FAILED,
    outcomes: ['amqp:accepted:list', 'amqp:rejected:list', 'amqp:released:list', 'amqp:modified:list'],
  };
  sender.set_source(fields as Source);
  sender.set_target({ address: sender.target?.address ?? '' });
}

function readGroup(filter: unknown): string | null {
  if (typeof filter !== 'object' || filter === null) return null;
  let group: string | null = null;
  for (const [name, value] of Object.entries(filter)) {
    if (name !== GROUP_FILTER) {
      throw notSupported(
        'filter',
        `Unknown filter ${quote(name)}. Allowed: ${GROUP_FILTER}; to select, use an exchange.`,
      );
    }
    group = groupOf(GROUP_FILTER, Buffer.from(textOf(value)).toString('latin1'));
  }
  return group;
}

/** A filter's value, described as the text wants it or bare. */
function textOf(value: unknown): string {
  const bare = typeof value === 'object' && value !== null && 'value' in value ? value.value : value;
  return String(bare);
}

function notSupported(parameter: string, message: string): QuaysideError {
  return new QuaysideError('not-supported', message, { parameter });
}
