/** Documented in `docs/cli.md`. */
export const EXIT_CODES = {
  done: 0,
  failed: 1,
  usage: 2,
  nothing: 3,
  notAllowed: 4,
  unavailable: 5,
  outcomeUnknown: 6,
} as const;
