import { useComputed, useSignal } from '@preact/signals';
import { useEffect, useState } from 'preact/hooks';
import { bytes, count } from '../format.ts';
import type { ElementBody } from '../remote/elements.ts';
import { Button } from './button.tsx';
import { Empty } from './states.tsx';

type ShownForm = 'tree' | 'text' | 'image' | 'hex';

const FORM_NAMES: Readonly<Record<ShownForm, string>> = {
  tree: 'Tree',
  text: 'Text',
  image: 'Image',
  hex: 'Hex',
};
/** Image types that browsers draw without running scripts. */
const IMAGES = /^image\/(png|jpeg|gif|webp|avif|bmp)\b/i;
const TEXT_STEP = 65_536;
const HEX_STEP = 4_096;

/** Shows a body as a JSON tree, text, an image or hex; never as a document, so that no script in it runs. */
export function BodyView({ body }: { readonly body: ElementBody }) {
  const { content, contentType, isCut, isUnreadable } = body;
  const text = useComputed(() => decode(content));
  const json = useComputed(() => (text.value === null || isCut ? null : parseJson(text.value)));
  const forms: readonly ShownForm[] = [
    ...(json.value !== null && typeof json.value.value === 'object' ? ['tree' as const] : []),
    ...(IMAGES.test(contentType ?? '') ? ['image' as const] : []),
    ...(text.value === null ? [] : ['text' as const]),
    'hex',
  ];
  const chosen = useSignal<ShownForm | null>(null);
  const form = chosen.value !== null && forms.includes(chosen.value) ? chosen.value : (forms[0] ?? 'hex');
  if (isUnreadable)
    return (
      <Empty title="The body does not match its content encoding" icon="warn">
        Browsers cannot decode it. Programs receive it as it was inserted.
      </Empty>
    );
  if (content.length === 0) return <Empty title="The body is empty">It has zero bytes.</Empty>;
  return (
    <div class="body-view">
      <div class="row">
        <fieldset class="segments" aria-label="Show the body as">
          {forms.map((one) => (
            <Button key={one} aria-pressed={one === form} onClick={() => (chosen.value = one)}>
              {FORM_NAMES[one]}
            </Button>
          ))}
        </fieldset>
        {isCut && (
          <span class="muted">
            Only the first {bytes(content.length)} are shown. Download it for the rest.
          </span>
        )}
      </div>
      {form === 'tree' && <JsonTree value={json.value?.value} />}
      {form === 'image' && <ImageView body={content} contentType={contentType ?? ''} />}
      {form === 'text' && <TextView text={text.value ?? ''} />}
      {form === 'hex' && <HexView body={content} />}
    </div>
  );
}

/** Decodes UTF-8; null if it is not UTF-8. The body may be cut in the middle of a character. */
export function decode(body: Uint8Array): string | null {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(body, { stream: true });
  } catch {
    return null;
  }
}

function TextView({ text }: { readonly text: string }) {
  const shown = useSignal(TEXT_STEP);
  return (
    <>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard */}
      <pre class="raw" dir="auto" tabIndex={0}>
        {text.slice(0, shown.value)}
      </pre>
      {text.length > shown.value && (
        <Button onClick={() => (shown.value += TEXT_STEP * 4)}>
          {count(text.length - shown.value)} characters more
        </Button>
      )}
    </>
  );
}

function HexView({ body }: { readonly body: Uint8Array }) {
  const shown = useSignal(HEX_STEP);
  const lines: string[] = [];
  for (let at = 0; at < Math.min(body.length, shown.value); at += 16) {
    const row = [...body.subarray(at, at + 16)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, '0')).join(' ');
    const ascii = row.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : '·')).join('');
    lines.push(`${at.toString(16).padStart(6, '0')}  ${hex.padEnd(47)}  ${ascii}`);
  }
  return (
    <>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard */}
      <pre class="raw hex" tabIndex={0}>
        {lines.join('\n')}
      </pre>
      {body.length > shown.value && (
        <Button onClick={() => (shown.value += HEX_STEP * 4)}>{bytes(body.length - shown.value)} more</Button>
      )}
    </>
  );
}

function ImageView({
  body,
  contentType,
}: {
  readonly body: Uint8Array<ArrayBuffer>;
  readonly contentType: string;
}) {
  const [url, setUrl] = useState<string | null>(null);
  const isBroken = useSignal(false);
  useEffect(() => {
    const made = URL.createObjectURL(new Blob([body], { type: contentType }));
    setUrl(made);
    isBroken.value = false;
    return () => URL.revokeObjectURL(made);
  }, [body, contentType]);
  if (isBroken.value)
    return (
      <Empty title="The body is not an image of its content type" icon="warn">
        The browser cannot draw it.
      </Empty>
    );
  return url === null ? null : (
    <img class="picture" src={url} alt="The body" onError={() => (isBroken.value = true)} />
  );
}

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
function parseJson(text: string): { readonly value: unknown } | null {
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
function JsonTree({ value }: { readonly value: unknown }) {
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
