import type { Called, Extra, Place } from '../protocol.ts';
import type { Call } from './call.ts';

/**
 * Reads what the guest answered. Its shape is checked to the last value although the guest is ours: should a
 * selector ever break out of the VM's language into the VM's memory, this is the wall behind it.
 * @throws Error where it is not as the guest writes it
 */
export function readAnswer(json: string, elements: number, destinations: number, call: Call): Called {
  const answer: unknown = JSON.parse(json);
  if (!Array.isArray(answer) || answer.length !== 3) throw malformed('answer');
  const [count, codes, extras] = answer;
  if (!Number.isInteger(count) || count < 1 || count > elements) throw malformed('count');
  if (typeof codes !== 'string' || codes.length !== count * destinations || !/^[0-3]*$/.test(codes)) {
    throw malformed('codes');
  }
  if (!Array.isArray(extras)) throw malformed('extras');
  return {
    outcome: 'called',
    count,
    codes,
    extras: extras.map((extra) => readExtra(extra, codes)),
    changes: call.changes,
    bodies: call.joinBodies(),
    logs: call.logs,
  };
}

function readExtra(extra: unknown, codes: string): Extra {
  if (!Array.isArray(extra)) throw malformed('extra');
  const [at, error, mature, delay, tries, place] = extra;
  if (codes[at] === '3' ? typeof error !== 'string' : codes[at] !== '2') throw malformed('extra');
  if (![mature, delay, tries].every((value) => value === null || (Number.isFinite(value) && value >= 0))) {
    throw malformed('extra');
  }
  return [at, error === null ? null : error.slice(0, 200), mature, delay, tries, readPlace(place)];
}

/** The guest names a line of the script, of which the first is ours. */
function readPlace(place: unknown): Place | null {
  if (place === null) return null;
  if (!Array.isArray(place) || place.length !== 2 || !place.every(Number.isSafeInteger)) {
    throw malformed('place');
  }
  const [line, column] = place;
  return line < 2 ? null : [line - 1, column];
}

function malformed(part: string): Error {
  return new Error(`the guest's ${part} is malformed`);
}
