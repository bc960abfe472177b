import { useSignal } from '@preact/signals';
import { useEffect, useId, useLayoutEffect, useRef } from 'preact/hooks';
import type { SelectorProblem } from '../remote/exchanges.ts';
import type { CodeEditor } from './code-editor.ts';

const PLACEHOLDER = 'env => env.msg.payload.amount > 100';

/** A field for a selector, with highlighted syntax and a marked mistake. Loads the editor when first shown. */
export function SelectorField({
  label,
  text,
  problem,
  onInput,
}: {
  readonly label: string;
  readonly text: string;
  readonly problem: SelectorProblem | null;
  readonly onInput: (text: string) => void;
}) {
  const host = useRef<HTMLDivElement>(null);
  const editor = useRef<CodeEditor | null>(null);
  const isPlain = useSignal(false);
  const id = useId();
  // The editor opens once, some time after the first render: it must read the latest values.
  const latest = useRef({ text, problem, onInput });
  latest.current = { text, problem, onInput };
  useEffect(() => {
    let isGone = false;
    const open = async (): Promise<void> => {
      const { openCodeEditor } = await import('./code-editor.ts');
      if (isGone || host.current === null) return;
      editor.current = openCodeEditor(host.current, {
        label,
        text: latest.current.text,
        placeholder: PLACEHOLDER,
        onInput: (changed) => latest.current.onInput(changed),
      });
      editor.current.setProblem(latest.current.problem);
    };
    // Fall back to a text area if the editor's file is gone after an update of the server.
    open().catch(() => {
      isPlain.value = true;
    });
    return () => {
      isGone = true;
      editor.current?.close();
    };
  }, []);
  // A layout effect, so that the editor gets this text before the next key; otherwise it would lose the key.
  useLayoutEffect(() => {
    editor.current?.setText(text);
  }, [text]);
  useEffect(() => {
    editor.current?.setProblem(problem);
  }, [problem]);
  return (
    <div class="field">
      <span aria-hidden="true">Selector</span>
      {isPlain.value ? (
        <textarea
          rows={4}
          spellcheck={false}
          aria-label={label}
          aria-describedby={id}
          value={text}
          placeholder={PLACEHOLDER}
          onInput={(event) => onInput(event.currentTarget.value)}
        />
      ) : (
        <div ref={host} class="code-editor" />
      )}
      <small id={id} role="status">
        {problem === null ? (
          'A function of the element. Empty: every element is accepted.'
        ) : (
          <span class="operation-error">
            Line {problem.line}
            {problem.column !== null && `, column ${problem.column}`}: {problem.message}
          </span>
        )}
      </small>
    </div>
  );
}
