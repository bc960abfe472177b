import { AMQP_HEADER, closeFrame, openFrame, SASL_HEADER } from './frames.ts';
import type { Phase } from './intake.ts';
import type { Refusal } from './refusal.ts';
import { outcomeFrame, outcomeOf } from './sasl.ts';
import type { ConnectionState } from './state.ts';

/**
 * What a peer hears at last, depending on how far its connection was: the protocol header that it should have
 * sent, a SASL outcome, or a `close`, behind an `open` where none was sent yet.
 */
export function farewell(
  phase: Phase,
  { isHeaderSent, isOpenSent, isCloseSent }: ConnectionState,
  reason: Refusal,
  containerId: string,
): Buffer[] {
  if (phase === 'sasl-header') return [SASL_HEADER];
  if (phase === 'sasl') return [outcomeFrame(outcomeOf(reason.condition))];
  const frames: Buffer[] = isHeaderSent ? [] : [AMQP_HEADER];
  if (phase === 'amqp-header' || isCloseSent) return frames;
  if (!isOpenSent) frames.push(openFrame(containerId));
  return [...frames, closeFrame(reason)];
}
