/** A metric that an expression reads, and what it demands of its labels. */
interface MetricSelector {
  readonly metric: string;
  readonly matchers: readonly { readonly label: string; readonly values: readonly string[] }[];
}

const WORDS = new Set(['and', 'or', 'unless', 'bool', 'offset', 'by', 'without', 'on', 'ignoring']);
const GROUPING = /\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)/g;
const NAME = /[a-zA-Z_:][\w:]*/g;

/**
 * The metrics and labels of an expression of PromQL that promtool has found to be correct. Every name that is neither a
 * function nor a keyword counts as a metric, so nothing escapes the caller's check by its spelling.
 */
export function selectorsOf(expression: string): {
  readonly selectors: readonly MetricSelector[];
  /** The labels by which it groups or joins. */
  readonly grouping: readonly string[];
} {
  const strings: string[] = [];
  // Strings may hold anything; braces then hold label matchers alone.
  const bare = expression.replace(
    /"((?:[^"\\]|\\.)*)"/g,
    (_, string: string) => `"${strings.push(string) - 1}"`,
  );
  const grouping = [...bare.matchAll(GROUPING)].flatMap(([, labels = '']) => labels.match(NAME) ?? []);
  const selectors: MetricSelector[] = [];
  const plain = bare.replace(GROUPING, ' ').replace(/\[[^\]]*\]/g, ' ');
  for (const found of plain.matchAll(/(?<![\w.])([a-zA-Z_:][\w:]*)\s*(\(|\{([^}]*)\})?/g)) {
    const [, metric = '', next = '', braces = ''] = found;
    if (next === '(' || WORDS.has(metric) || isInBraces(plain, found.index)) continue;
    const matchers = [...braces.matchAll(/(\w+)\s*(?:=~|!~|!=|=)\s*"(\d+)"/g)].map(
      ([, label = '', string = '']) => ({ label, values: (strings[Number(string)] ?? '').split('|') }),
    );
    selectors.push({ metric, matchers });
  }
  return { selectors, grouping };
}

function isInBraces(text: string, at: number): boolean {
  return text.lastIndexOf('{', at) > text.lastIndexOf('}', at);
}
