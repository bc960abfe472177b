import { escapeHeader, type HeadRules } from './version.ts';

/** One header line. Name and value are bytes, one character for each. */
export function headerLine(rules: HeadRules, name: string, value: string): string {
  return `${escapeHeader(rules, name)}:${escapeHeader(rules, value)}\n`;
}

/** A frame up to the NUL that ends it, which the outbox writes. The body is given as bytes, one character for each. */
export function frameText(rules: HeadRules, command: string, headers: readonly string[], body = ''): string {
  let text = `${command}\n`;
  for (let at = 0; at + 1 < headers.length; at += 2) {
    text += headerLine(rules, headers[at] as string, headers[at + 1] as string);
  }
  return `${text}\n${body}`;
}
