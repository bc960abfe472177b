import { useSignal } from '@preact/signals';
import type { ComponentChildren, TargetedEvent } from 'preact';
import { useId } from 'preact/hooks';
import type { QueueNamed } from '../api.ts';

/** A labelled field of a form. */
export function Field({
  label,
  hint,
  children,
}: {
  readonly label: string;
  readonly hint?: string;
  readonly children: ComponentChildren;
}) {
  return (
    // biome-ignore lint/a11y/noLabelWithoutControl: the control is a child
    <label class="field">
      <span>{label}</span>
      {children}
      {hint !== undefined && <small>{hint}</small>}
    </label>
  );
}

/** Chooses one of several options, each a value and its text. */
export function Select<T extends string>({
  label,
  className,
  value,
  options,
  isDisabled = false,
  onChange,
}: {
  /** The name of a choice that is not in a labelled field. */
  readonly label?: string;
  readonly className?: string;
  readonly value: T;
  readonly options: readonly (readonly [T, string])[];
  readonly isDisabled?: boolean;
  readonly onChange: (value: T) => void;
}) {
  return (
    <select
      class={className}
      aria-label={label}
      value={value}
      disabled={isDisabled}
      onChange={(event) => onChange(event.currentTarget.value as T)}
    >
      {options.map(([one, text]) => (
        <option key={one} value={one}>
          {text}
        </option>
      ))}
    </select>
  );
}

/** The options of {@link Select} for names, which are their own texts. */
export function optionsOf(names: readonly string[]): readonly (readonly [string, string])[] {
  return names.map((name) => [name, name]);
}

/** Suggestions for the field whose `list` is `id`. */
export function Suggestions({ id, words }: { readonly id: string; readonly words: readonly string[] }) {
  return (
    <datalist id={id}>
      {words.map((word) => (
        <option key={word} value={word} />
      ))}
    </datalist>
  );
}

/** Fields for a queue of one of several namespaces. */
export function QueueFields({
  label,
  of: { ns, queue },
  namespaces,
  suggestions = [],
  onChange,
}: {
  readonly label: string;
  readonly of: QueueNamed;
  readonly namespaces: readonly string[];
  readonly suggestions?: readonly string[];
  readonly onChange: (changed: QueueNamed) => void;
}) {
  const id = useId();
  return (
    <>
      <Field label={`${label} namespace`}>
        <Select
          value={ns}
          options={optionsOf(namespaces)}
          onChange={(chosen) => onChange({ ns: chosen, queue })}
        />
      </Field>
      <Field label={`${label} queue`}>
        <input
          list={suggestions.length > 0 ? id : undefined}
          value={queue}
          required
          onInput={(event) => onChange({ ns, queue: event.currentTarget.value })}
        />
        {suggestions.length > 0 && <Suggestions id={id} words={suggestions} />}
      </Field>
    </>
  );
}

/** Handles the submission of a form, with its data. */
export function onData(
  handle: (data: FormData, form: HTMLFormElement) => void,
): (event: TargetedEvent<HTMLFormElement>) => void {
  return (event) => {
    event.preventDefault();
    handle(new FormData(event.currentTarget), event.currentTarget);
  };
}

interface FormWork {
  readonly isBusy: boolean;
  /** Why the last action failed; null: it did not. */
  readonly error: unknown;
  /** Runs the action of a form, and keeps its error. */
  readonly run: (action: () => Promise<void>) => Promise<void>;
}

/** The action of a form: whether it runs, and its error. */
export function useWork(): FormWork {
  const isBusy = useSignal(false);
  const error = useSignal<unknown>(null);
  return {
    isBusy: isBusy.value,
    error: error.value,
    run: async (action) => {
      isBusy.value = true;
      error.value = null;
      try {
        await action();
      } catch (reason) {
        error.value = reason;
      }
      isBusy.value = false;
    },
  };
}
