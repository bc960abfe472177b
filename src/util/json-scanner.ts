/** `JSON.parse` needs at most 7 ms for a text of this length. */
export const SHORT_JSON = 65_536;

/** `JSON.parse` needs at most 20 ms for a text with this number of values, and 3 ms more for each MiB. */
export const FEW_VALUES = 16_384;

/** Characters to scan before other requests are served: they take a few milliseconds. */
export const SCAN_STEP = 262_144;

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const COMMA = 0x2c;
const COLON = 0x3a;
const [OPEN_BRACKET, CLOSE_BRACKET] = [0x5b, 0x5d];
const [OPEN_BRACE, CLOSE_BRACE] = [0x7b, 0x7d];
const [PLUS, MINUS, POINT] = [0x2b, 0x2d, 0x2e];
const [DIGIT_0, DIGIT_9] = [0x30, 0x39];
const LOWER_CASE = 0x20;
const [LOWER_E, LOWER_U] = [0x65, 0x75];

/** The characters that may follow a backslash, except for u. */
const ESCAPES: ReadonlySet<number> = new Set(Buffer.from('"\\/bfnrt'));

const NO_BITS = new Uint32Array();

/**
 * Checks a JSON text without creating its values: accepts exactly what `JSON.parse` accepts (RFC 8259), in a time that
 * is proportional to the length of the text, and in steps. Nesting takes a bit of memory for each level.
 *
 * The caller scans the value of a whole text with `value` and `end`, or the members of an object with `nextMember`.
 * All methods throw a SyntaxError, as `JSON.parse` does, if the text is not JSON.
 */
export class JsonScanner {
  readonly #text: string;
  #at = 0;
  /** Arrays and objects around the position, within the value that `value` scans. */
  #depth = 0;
  /** A bit for each of them but the innermost one: whether it is an object. */
  #outerAreObjects = NO_BITS;
  #isInObject = false;
  /** Whether a value within the value that `value` scans has just ended. */
  #isAfterValue = false;
  #valueCount = 0;
  /** Members that have been read of the object whose members the caller reads. */
  #memberCount = 0;

  constructor(text: string) {
    this.#text = text;
  }

  /** Index of the next character to scan. */
  get at(): number {
    return this.#at;
  }

  /** Number of values that `value` has scanned, those within others included. */
  get valueCount(): number {
    return this.#valueCount;
  }

  /** Whether the value that is next is an object. */
  isAtObject(): boolean {
    this.#at = spaceEnd(this.#text, this.#at);
    return this.#text.charCodeAt(this.#at) === OPEN_BRACE;
  }

  /**
   * Continues in an object that is not within another value, up to the value of its next member. The caller scans
   * that with `value`.
   * @returns the name as in the text, without its quotes; null at the end of the object
   */
  nextMember(): string | null {
    const text = this.#text;
    const from = spaceEnd(text, this.#at);
    const code = text.charCodeAt(from);
    let nameAt = spaceEnd(text, from + 1);
    if (this.#memberCount === 0) {
      if (code !== OPEN_BRACE) throw unexpected(text, from);
      if (text.charCodeAt(nameAt) === CLOSE_BRACE) return this.#endAt(nameAt + 1);
    } else if (code === CLOSE_BRACE) return this.#endAt(from + 1);
    else if (code !== COMMA) throw unexpected(text, from);
    nameAt = spaceEnd(text, nameAt);
    const valueAt = memberValueAt(text, nameAt);
    this.#memberCount += 1;
    this.#at = spaceEnd(text, valueAt);
    return text.slice(nameAt + 1, text.lastIndexOf('"', valueAt - 1));
  }

  #endAt(at: number): null {
    this.#at = at;
    return null;
  }

  /** Checks that only white space follows. */
  end(): void {
    this.#at = spaceEnd(this.#text, this.#at);
    if (this.#at < this.#text.length) throw unexpected(this.#text, this.#at);
  }

  /**
   * Scans a value, or continues in it.
   * @param maxCharacters approximate length of this step
   * @returns whether the value has ended; otherwise, call this again
   */
  value(maxCharacters = Number.POSITIVE_INFINITY): boolean {
    const text = this.#text;
    const stepEnd = this.#at + maxCharacters;
    let at = this.#at;
    let depth = this.#depth;
    let isInObject = this.#isInObject;
    let isAfterValue = this.#isAfterValue;
    let valueCount = this.#valueCount;
    do {
      at = spaceEnd(text, at);
      const code = text.charCodeAt(at);
      if (!isAfterValue) {
        valueCount += 1;
        if (code === QUOTE) at = stringEnd(text, at);
        else if (code === OPEN_BRACKET || code === OPEN_BRACE) {
          const isObject = code === OPEN_BRACE;
          at = spaceEnd(text, at + 1);
          if (text.charCodeAt(at) === (isObject ? CLOSE_BRACE : CLOSE_BRACKET)) at += 1;
          else {
            this.#setOuter(depth, isInObject);
            depth += 1;
            isInObject = isObject;
            if (isObject) at = memberValueAt(text, at);
            continue;
          }
        } else at = wordEnd(text, at, code);
        isAfterValue = true;
      } else if (code === COMMA) {
        at += 1;
        if (isInObject) at = memberValueAt(text, spaceEnd(text, at));
        isAfterValue = false;
      } else {
        if (code !== (isInObject ? CLOSE_BRACE : CLOSE_BRACKET)) throw unexpected(text, at);
        at += 1;
        depth -= 1;
        isInObject = this.#isOuterObject(depth);
      }
    } while ((depth > 0 || !isAfterValue) && at < stepEnd);
    const hasEnded = depth === 0 && isAfterValue;
    this.#at = at;
    this.#depth = depth;
    this.#isInObject = isInObject;
    this.#isAfterValue = isAfterValue && !hasEnded;
    this.#valueCount = valueCount;
    return hasEnded;
  }

  #setOuter(depth: number, isObject: boolean): void {
    const index = depth >>> 5;
    if (index === this.#outerAreObjects.length) {
      const larger = new Uint32Array(2 * index || 4);
      larger.set(this.#outerAreObjects);
      this.#outerAreObjects = larger;
    }
    const bit = 1 << (depth & 31);
    const bits = this.#outerAreObjects[index] ?? 0;
    this.#outerAreObjects[index] = isObject ? bits | bit : bits & ~bit;
  }

  #isOuterObject(depth: number): boolean {
    return (((this.#outerAreObjects[depth >>> 5] ?? 0) >>> (depth & 31)) & 1) === 1;
  }
}

/**
 * Whether `JSON.parse` needs little time for a text, JSON or not. Otherwise its time is not even proportional to the
 * length: 26 MB with two million members took 27 s.
 */
export function isParsedFast(text: string): boolean {
  return text.length <= SHORT_JSON || !hasMoreValues(text, FEW_VALUES);
}

/**
 * Whether a text has more JSON values than this, before the first error if it is not JSON. May count an empty array or
 * object twice.
 */
export function hasMoreValues(text: string, max: number): boolean {
  let count = 1;
  for (let at = 0; at < text.length && count <= max; at += 1) {
    const code = text.charCodeAt(at);
    if (code === QUOTE) at = endOfString(text, at) - 1;
    else if (code === COMMA || code === OPEN_BRACKET || code === OPEN_BRACE) count += 1;
  }
  return count > max;
}

/**
 * Index behind the closing quote of the string whose opening quote is at `from`; the end of the text if there is none.
 * Does not check the string, and is therefore much faster than the scanner.
 */
export function endOfString(text: string, from: number): number {
  for (let at = text.indexOf('"', from + 1); at !== -1; at = text.indexOf('"', at + 1)) {
    let backslashes = 0;
    while (text.charCodeAt(at - 1 - backslashes) === BACKSLASH) backslashes += 1;
    if (backslashes % 2 === 0) return at + 1;
  }
  return text.length;
}

/**
 * Yields name and text of each member of the JSON text of an object, and null after each step of a long member.
 * @throws SyntaxError if the text is not JSON, or not an object
 */
export function* membersOf(text: string): Generator<readonly [name: string, value: string] | null> {
  const scanner = new JsonScanner(text);
  for (let name = scanner.nextMember(); name !== null; name = scanner.nextMember()) {
    const from = scanner.at;
    while (!scanner.value(SCAN_STEP)) yield null;
    yield [unescaped(name), text.slice(from, scanner.at)];
  }
  scanner.end();
}

/** @param name of a member, as in the text without its quotes */
export function unescaped(name: string): string {
  return name.includes('\\') ? (JSON.parse(`"${name}"`) as string) : name;
}

/** Whether a text is JSON. */
export function isJson(text: string): boolean {
  try {
    if (isParsedFast(text)) JSON.parse(text);
    else {
      const scanner = new JsonScanner(text);
      scanner.value();
      scanner.end();
    }
    return true;
  } catch {
    return false;
  }
}

/** Index behind the white space at `from`. */
function spaceEnd(text: string, from: number): number {
  for (let at = from; ; at += 1) {
    const code = text.charCodeAt(at);
    if (code !== 0x20 && code !== 0x0a && code !== 0x0d && code !== 0x09) return at;
  }
}

/** Index behind the name of a member, which must start at `from`, and its colon. */
function memberValueAt(text: string, from: number): number {
  if (text.charCodeAt(from) !== QUOTE) throw unexpected(text, from);
  const at = spaceEnd(text, stringEnd(text, from));
  if (text.charCodeAt(at) !== COLON) throw unexpected(text, at);
  return at + 1;
}

/** Index behind the string whose opening quote is at `from`. */
function stringEnd(text: string, from: number): number {
  for (let at = from + 1; ; at += 1) {
    const code = text.charCodeAt(at);
    if (code === QUOTE) return at + 1;
    if (code === BACKSLASH) {
      at += 1;
      const escaped = text.charCodeAt(at);
      if (escaped === LOWER_U) {
        for (const last = at + 4; at < last; ) {
          at += 1;
          if (!isHexDigit(text.charCodeAt(at))) throw invalidString(text, at, 'Bad Unicode escape');
        }
      } else if (!ESCAPES.has(escaped)) throw invalidString(text, at, 'Bad escaped character');
    } else if (!(code >= 0x20)) {
      throw invalidString(text, at, 'Bad control character in string literal');
    }
  }
}

function isDigit(code: number): boolean {
  return code >= DIGIT_0 && code <= DIGIT_9;
}

function isHexDigit(code: number): boolean {
  const lower = code | LOWER_CASE;
  return isDigit(code) || (lower >= 0x61 && lower <= 0x66);
}

const LITERALS = new Map(['true', 'false', 'null'].map((word) => [word.charCodeAt(0), word]));

/** Index behind the number or literal at `from`. @param first its first character */
function wordEnd(text: string, from: number, first: number): number {
  if (first === MINUS || isDigit(first)) return numberEnd(text, from);
  const word = LITERALS.get(first) ?? '';
  let length = 0;
  while (length < word.length && text.charCodeAt(from + length) === word.charCodeAt(length)) length += 1;
  if (length === 0 || length < word.length) throw unexpected(text, from + length);
  return from + length;
}

function numberEnd(text: string, from: number): number {
  let at = text.charCodeAt(from) === MINUS ? from + 1 : from;
  at = text.charCodeAt(at) === DIGIT_0 ? at + 1 : digitsEnd(text, at);
  if (text.charCodeAt(at) === POINT) at = digitsEnd(text, at + 1);
  if ((text.charCodeAt(at) | LOWER_CASE) !== LOWER_E) return at;
  const sign = text.charCodeAt(at + 1);
  return digitsEnd(text, sign === PLUS || sign === MINUS ? at + 2 : at + 1);
}

/** Index behind the digits at `from`, of which there must be one. */
function digitsEnd(text: string, from: number): number {
  let at = from;
  while (isDigit(text.charCodeAt(at))) at += 1;
  if (at === from) throw unexpected(text, at);
  return at;
}

function unexpected(text: string, at: number): SyntaxError {
  const point = text.codePointAt(at);
  if (point === undefined) return new SyntaxError('Unexpected end of JSON input');
  return new SyntaxError(`Unexpected token '${String.fromCodePoint(point)}' at position ${at}`);
}

function invalidString(text: string, at: number, what: string): SyntaxError {
  return new SyntaxError(`${at < text.length ? what : 'Unterminated string'} at position ${at}`);
}
