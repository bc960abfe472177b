import { QuaysideError } from '../model/errors.ts';

/** How the elements of a body stand in it. */
export type Place = 'line' | 'part';

/** The same error, which says where it was. */
export function errorIn(place: Place, number: number, thrown: unknown): unknown {
  if (!(thrown instanceof QuaysideError)) return thrown;
  const where = place === 'line' ? 'Line' : 'Part';
  const extra = { ...thrown.details.extra, [place]: number };
  return thrown.with({ message: `${where} ${number}: ${thrown.message}`, extra });
}
