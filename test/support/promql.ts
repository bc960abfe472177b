/** A metric that an expression reads, and the labels that it selects by. */
interface MetricSelector {
  readonly metric: string;
  readonly matchers: readonly { readonly label: string; readonly values: readonly string[] }[];
}

const WORDS = new Set(['and', 'or', 'unless', 'bool', 'offset', 'by', 'without', 'on', 'ignoring']);
const GROUPING = /\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)/g;
const NAME = /[a-zA-Z_:][\w:]*/g;

/**
 * Returns the metrics and labels of a PromQL expression that promtool has accepted. Every name that is neither a
 * function nor a keyword counts as a metric, so no misspelled one escapes the caller's check.
 */
export function selectorsOf(expression: string): {
  readonly selectors: readonly MetricSelector[];
  /** The labels by which it groups or joins series. */
  readonly grouping: readonly string[];
} {
  const strings: string[] = [];
  // Remove strings, which may contain anything; braces then contain only label matchers.
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
