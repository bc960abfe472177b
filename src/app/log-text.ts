/** An event of the log, as its line of JSON has it. */
interface LogEvent {
  readonly level: string;
  /** ISO 8601, UTC. */
  readonly time: string;
  readonly msg?: string;
  readonly [field: string]: unknown;
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what must not reach a terminal
const CONTROL = /[\u0000-\u001f]/g;

/**
 * A line of JSON as a person reads it: `12:34:56.789 WARN  a login failed  user=ann address=192.0.2.1`, and the stacks
 * of errors on lines of their own. Values of clients are escaped, so that none can make a line of its own. A line that
 * is no event in JSON is written as it is: the log must never be what stops the server.
 */
export function textLine(json: string): string {
  try {
    return eventText(JSON.parse(json) as LogEvent);
  } catch {
    return `${escaped(json.trimEnd())}\n`;
  }
}

function eventText({ level, time, msg = '', ...fields }: LogEvent): string {
  const stacks: string[] = [];
  const shown = Object.entries(fields).map(([name, value]) => {
    if (isError(value)) stacks.push(stackText(value));
    return `${escaped(name)}=${valueText(isError(value) ? value.message : value)}`;
  });
  const at = time.slice(time.indexOf('T') + 1, -1);
  const head = [`${at} ${level.toUpperCase().padEnd(5)} ${escaped(msg)}`, ...shown].join('  ');
  return [head, ...stacks].map((text) => `${text}\n`).join('');
}

interface ShownError {
  readonly message: string;
  readonly stack?: string;
  readonly causes?: readonly unknown[];
}

function isError(value: unknown): value is ShownError {
  return typeof value === 'object' && value !== null && 'message' in value && 'stack' in value;
}

function stackText({ stack = '', causes = [] }: ShownError): string {
  const own = stack.split('\n').map((line) => `    ${escaped(line)}`);
  const inner = causes.filter(isError).map((cause) => `    caused by:\n${stackText(cause)}`);
  return [...own, ...inner].join('\n');
}

/** Words stand as they are; whatever else is JSON, so that its end can be seen. */
function valueText(value: unknown): string {
  if (typeof value === 'string' && /^[^\s"'=]+$/.test(value)) return escaped(value);
  return escaped(JSON.stringify(value) ?? '');
}

function escaped(text: string): string {
  return text.replace(CONTROL, (control) => `\\u${control.charCodeAt(0).toString(16).padStart(4, '0')}`);
}
