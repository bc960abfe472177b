import assert from 'node:assert/strict';
import fc from 'fast-check';
import { otherCode, otherField, otherNumber, RECORDED, type Recorded } from './amqp-sessions.ts';
import { breaks, type Mutation, mutated, mutations, pieces, place } from './mutations.ts';

const changes = mutations(otherNumber, otherCode, otherField);

/** A recorded session with one mutated frame. */
export interface MutatedSession {
  readonly which: number;
  readonly share: number;
  readonly change: readonly Mutation[];
  readonly at: readonly number[];
  /** Whether the size field is adjusted to the mutated frame, so that only its content is invalid. */
  readonly isFitted: boolean;
}

export const mutatedSessions: fc.Arbitrary<MutatedSession> = fc.record({
  which: fc.constantFrom(...RECORDED.keys()),
  share: place,
  change: changes,
  at: breaks,
  isFitted: fc.integer({ min: 0, max: 3 }).map((one) => one > 0),
});

function recorded(which: number): Recorded {
  const found = RECORDED[which];
  assert.ok(found !== undefined);
  return found;
}

/** The writes of a client that mutates one frame, in its login or after it. */
export function writesOf(session: MutatedSession, isLoggedIn: boolean): Buffer[] {
  const { which, share, at } = session;
  const { login, frames } = recorded(which);
  const changed = isLoggedIn
    ? login.length + Math.floor(share * frames.length)
    : Math.floor(share * login.length);
  const sent = withMutatedFrame([...login, ...frames], changed, session);
  if (share < 0.5) return sent.flatMap((frame, i) => (i === changed ? pieces(frame, at) : [frame]));
  // Everything from the mutated frame on is one stream, split anywhere.
  return [...sent.slice(0, changed), ...pieces(Buffer.concat(sent.slice(changed)), at)];
}

/** The frames after the login, one of them mutated. */
export function mutatedFrames(session: MutatedSession): Buffer[] {
  const { frames } = recorded(session.which);
  return withMutatedFrame(frames, Math.floor(session.share * frames.length), session);
}

function withMutatedFrame(
  all: readonly Buffer[],
  changed: number,
  { change, isFitted }: MutatedSession,
): Buffer[] {
  return all.map((frame, i) => {
    if (i !== changed) return frame;
    const after = mutated(frame, change);
    return isFitted ? fitted(after) : after;
  });
}

/** Sets the size field to the length of the frame. */
function fitted(frame: Buffer): Buffer {
  if (frame.length < 8 || frame.toString('latin1', 0, 4) === 'AMQP') return frame;
  const changed = Buffer.from(frame);
  changed.writeUInt32BE(changed.length);
  return changed;
}
