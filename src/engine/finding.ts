/** What a check found that an operator asked for. */
export interface Finding {
  readonly level: 'ok' | 'warning' | 'error';
  /** What was checked: `disk`, or the masked URL of an engine. */
  readonly check: string;
  readonly message: string;
  /** What to do; null: nothing. */
  readonly hint: string | null;
}

/** Further apart than this, moments that clients give are not those that the store sees. */
const MAX_CLOCK_DIFFERENCE_MS = 1_000;

/** Compares the clock of a store's server with that of this machine, read at the same moment. */
export function clockFinding(check: string, server: number, here: number): Finding {
  const seconds = (Math.abs(server - here) / 1000).toFixed(1);
  if (Math.abs(server - here) <= MAX_CLOCK_DIFFERENCE_MS) {
    return {
      level: 'ok',
      check,
      message: `its clock and that of this machine are ${seconds} s apart`,
      hint: null,
    };
  }
  return {
    level: 'warning',
    check,
    message: `its clock is ${seconds} s ${server > here ? 'ahead of' : 'behind'} that of this machine`,
    hint: 'synchronize both clocks (NTP): maturity and leases go by the clock of the server',
  };
}
