import { type Document, isScalar, parseDocument, visit, type YAMLError } from 'yaml';

/** The parsed value, or a problem that does not quote the text, because it may contain secrets. */
export type YamlOutcome = { readonly value: unknown } | { readonly problem: string };

const MAX_ALIASES = 100;

export function readYaml(text: string): YamlOutcome {
  // The parser's own check compares each key of a map with all others: half of its time with 10,000 users.
  const document = parseDocument(text, { uniqueKeys: false });
  const error = document.errors[0] ?? document.warnings[0];
  if (error !== undefined) return { problem: `is not YAML: ${errorText(error)}` };
  const repeatedAt = repeatedKey(document);
  if (repeatedAt !== null) {
    return { problem: `is not YAML: Map keys must be unique, ${positionText(text, repeatedAt)}` };
  }
  try {
    return { value: document.toJS({ maxAliasCount: MAX_ALIASES }) };
  } catch {
    return { problem: 'has an undefined alias (*name), or too many aliases' };
  }
}

/** The error and its position. The rest of the parser's message is dropped because it may quote the text. */
function errorText({ message, linePos }: YAMLError): string {
  const [summary = ''] = message.split(/: |; | at line |\n/);
  const [position] = linePos ?? [];
  return position === undefined ? summary : `${summary}, at line ${position.line}, column ${position.col}`;
}

/** Offset of the first key that occurs twice in its map; null if there is none. */
function repeatedKey(document: Document.Parsed): number | null {
  let offset: number | null = null;
  visit(document, {
    Map(_, { items }) {
      const seen = new Set<unknown>();
      for (const { key } of items) {
        if (!isScalar(key)) continue;
        if (seen.has(key.value)) {
          offset = key.range?.[0] ?? 0;
          return visit.BREAK;
        }
        seen.add(key.value);
      }
      return undefined;
    },
  });
  return offset;
}

function positionText(text: string, offset: number): string {
  const lines = text.slice(0, offset).split('\n');
  return `at line ${lines.length}, column ${(lines.at(-1) ?? '').length + 1}`;
}
