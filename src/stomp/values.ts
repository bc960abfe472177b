import { malformed } from './codec/malformed.ts';

/** @throws QuaysideError `malformed-request` where it was not sent, or is empty */
export function needed(command: string, name: string, value: string | null): string {
  if (value !== null && value !== '') return value;
  throw malformed(`${command} needs the header ${name}.`, name);
}
