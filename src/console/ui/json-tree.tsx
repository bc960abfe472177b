import { useSignal } from '@preact/signals';
import { count } from '../format.ts';
import { Button } from './button.tsx';

/** Levels that are open initially, and members of a value that are shown initially. */
const OPEN_LEVELS = 2;
const INITIAL_MEMBERS = 100;
const MAX_TEXT = 2_000;

/** A number that JavaScript would round or format differently, such as a 64-bit id, as it is written in the JSON. */
class LiteralNumber {
  readonly text: string;

  constructor(text: string) {
    this.text = text;
  }
}

/** Parses JSON; null if it is invalid. */
export function parseJson(text: string): { readonly value: unknown } | null {
  // Without the second try, deeply nested values, for which a reviver fails, would count as invalid.
  for (const reviver of [keepLiteral, undefined]) {
    try {
      return { value: JSON.parse(text, reviver) };
    } catch {}
  }
  return null;
}

/** Newer browsers pass the source text of a value. */
function keepLiteral(_: string, value: unknown, context?: { readonly source?: string }): unknown {
  const source = context?.source;
  return typeof value === 'number' && source !== undefined && source !== String(value)
    ? new LiteralNumber(source)
    : value;
}

/** A JSON value as a tree. Only open levels are rendered. */
export function JsonTree({ value }: { readonly value: unknown }) {
  return (
    <div class="tree mono">
      <JsonNode name={null} value={value} level={0} />
    </div>
  );
}

function JsonNode({
  name,
  value,
  level,
}: {
  readonly name: string | null;
  readonly value: unknown;
  readonly level: number;
}) {
  const isOpen = useSignal(level < OPEN_LEVELS);
  const shown = useSignal(INITIAL_MEMBERS);
  const label = name === null ? null : <span class="key">{name}: </span>;
  if (typeof value !== 'object' || value === null || value instanceof LiteralNumber) {
    return (
      <div class="leaf">
        {label}
        <JsonScalar value={value} />
      </div>
    );
  }
  const members = Object.entries(value);
  const isArray = Array.isArray(value);
  const size = isArray ? `[${count(members.length)}]` : `{${count(members.length)}}`;
  return (
    <div>
      <Button
        icon={isOpen.value ? 'down' : 'right'}
        class="quiet twig"
        aria-expanded={isOpen.value}
        onClick={() => (isOpen.value = !isOpen.value)}
      >
        {label}
        <span class="muted">{size}</span>
      </Button>
      {isOpen.value && (
        <div class="branch">
          {members.slice(0, shown.value).map(([key, member]) => (
            <JsonNode key={key} name={key} value={member} level={level + 1} />
          ))}
          {members.length > shown.value && (
            <Button class="link" onClick={() => (shown.value += INITIAL_MEMBERS * 10)}>
              {count(members.length - shown.value)} more
            </Button>
          )}
        </div>
      )}
    </div>
  );
}

function JsonScalar({ value }: { readonly value: unknown }) {
  if (value instanceof LiteralNumber) return <span class="literal">{value.text}</span>;
  if (typeof value !== 'string') return <span class="literal">{String(value)}</span>;
  const isLong = value.length > MAX_TEXT;
  return (
    <span class="string">
      "{isLong ? value.slice(0, MAX_TEXT) : value}"
      {isLong && <span class="muted"> … {count(value.length)} characters</span>}
    </span>
  );
}
