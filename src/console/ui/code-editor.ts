import { defaultKeymap, history, historyKeymap } from '@codemirror/commands';
import { bracketMatching, HighlightStyle, LRLanguage, syntaxHighlighting } from '@codemirror/language';
import { type EditorState, StateEffect, StateField } from '@codemirror/state';
import {
  Decoration,
  type DecorationSet,
  EditorView,
  keymap,
  lineNumbers,
  placeholder,
} from '@codemirror/view';
import { tags } from '@lezer/highlight';
import { parser } from '@lezer/javascript';
import type { SelectorProblem } from '../remote/exchanges.ts';

export interface CodeEditor {
  /** Replaces the text, unless it is equal. */
  setText(text: string): void;
  /** Marks the line of a mistake; null removes the mark. */
  setProblem(problem: SelectorProblem | null): void;
  close(): void;
}

/** A selector is one expression. */
const SELECTOR = LRLanguage.define({ parser: parser.configure({ top: 'SingleExpression' }) });

const COLOURS = HighlightStyle.define([
  { tag: [tags.keyword, tags.operatorKeyword, tags.controlKeyword], color: 'var(--reserved)' },
  { tag: [tags.string, tags.special(tags.string), tags.regexp], color: 'var(--good)' },
  { tag: [tags.number, tags.bool, tags.null], color: 'var(--out)' },
  { tag: [tags.propertyName], color: 'var(--in)' },
  { tag: [tags.comment], color: 'var(--muted)', fontStyle: 'italic' },
]);

const THEME = EditorView.theme({
  '&': { fontSize: 'var(--small)', maxHeight: '20rem' },
  '&.cm-focused': { outline: 'none' },
  '.cm-scroller': { fontFamily: 'var(--mono)', lineHeight: '1.5', overflow: 'auto' },
  '.cm-content': { minHeight: '4.5rem', caretColor: 'var(--text)' },
  '.cm-gutters': {
    backgroundColor: 'var(--sunken)',
    color: 'var(--muted)',
    borderRight: '1px solid var(--line)',
  },
  '.cm-placeholder': { color: 'var(--muted)' },
  // Otherwise it would have the color of text.
  '@media (forced-colors: active)': { '.cm-placeholder': { color: 'GrayText' } },
  '&.cm-focused .cm-matchingBracket': {
    backgroundColor: 'var(--accent-soft)',
    outline: '1px solid var(--accent)',
  },
  '.cm-problem-line': { backgroundColor: 'var(--bad-soft)' },
  '.cm-problem-place': { textDecoration: 'underline wavy var(--bad)' },
});

const setMarks = StateEffect.define<DecorationSet>();

/** The marks of a mistake. They move with their text when other text changes. */
const marks = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update: (value, { changes, effects }) =>
    effects.find((effect) => effect.is(setMarks))?.value ?? value.map(changes),
  provide: (field) => EditorView.decorations.from(field),
});

function marksOf({ doc }: EditorState, problem: SelectorProblem | null): DecorationSet {
  if (problem === null || problem.line > doc.lines) return Decoration.none;
  const line = doc.line(problem.line);
  const whole = Decoration.line({ class: 'cm-problem-line' }).range(line.from);
  const from = Math.min(line.to, line.from + (problem.column ?? 1) - 1);
  if (from === line.to) return Decoration.set([whole]);
  return Decoration.set([whole, Decoration.mark({ class: 'cm-problem-place' }).range(from, from + 1)]);
}

/**
 * Opens an editor of one selector in a shadow root, where its styles are adopted as style sheets: the page's content
 * security policy allows no `<style>` added by scripts.
 */
export function openCodeEditor(
  host: HTMLElement,
  options: {
    readonly label: string;
    readonly text: string;
    readonly placeholder: string;
    readonly onInput: (text: string) => void;
  },
): CodeEditor {
  const root = host.shadowRoot ?? host.attachShadow({ mode: 'open' });
  let isOurs = false;
  const view = new EditorView({
    root,
    parent: root,
    doc: options.text,
    extensions: [
      lineNumbers(),
      history(),
      bracketMatching(),
      SELECTOR,
      syntaxHighlighting(COLOURS),
      marks,
      placeholder(options.placeholder),
      EditorView.lineWrapping,
      // Tab is not bound: it moves the focus out of the editor, as in other fields.
      keymap.of([...defaultKeymap, ...historyKeymap]),
      EditorView.contentAttributes.of({ 'aria-label': options.label }),
      THEME,
      EditorView.updateListener.of(({ docChanged, state }) => {
        if (docChanged && !isOurs) options.onInput(state.doc.toString());
      }),
    ],
  });
  return {
    setText(text) {
      if (text === view.state.doc.toString()) return;
      isOurs = true;
      view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text } });
      isOurs = false;
    },
    setProblem(problem) {
      view.dispatch({ effects: setMarks.of(marksOf(view.state, problem)) });
    },
    close() {
      view.destroy();
    },
  };
}
