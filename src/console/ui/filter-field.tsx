import { useSignal } from '@preact/signals';
import type { ComponentChildren } from 'preact';
import { useEffect, useId, useLayoutEffect } from 'preact/hooks';
import { address, setQuery } from '../route.ts';
import { after } from '../timers.ts';
import { Button } from './button.tsx';
import { Suggestions } from './form.tsx';
import { Empty } from './states.tsx';

/** How long after the last key the filter applies: an unfinished word, such as `age:>`, is an error. */
const TYPING_PAUSE_MS = 250;

/** The filter in the address of the page. */
export function filterOfPage(): string {
  return address.value.query.get('filter') ?? '';
}

/** Shown in place of a list none of whose rows the filter accepts. @param all what is shown without a filter */
export function NoMatch({
  title,
  all,
  children,
}: {
  readonly title: string;
  readonly all: string;
  readonly children?: ComponentChildren;
}) {
  return (
    <Empty title={`${title} matches the filter`} icon="search">
      {children}
      <Button class="link" onClick={() => setQuery({ filter: null, page: null })}>
        Show all {all}
      </Button>
    </Empty>
  );
}

/** A field for the filter of a list, which the address of the page contains. */
export function FilterField({
  label,
  placeholder,
  suggestions = [],
}: {
  readonly label: string;
  readonly placeholder: string;
  readonly suggestions?: readonly string[];
}) {
  const id = useId();
  const filter = filterOfPage();
  const typed = useSignal(filter);
  // A layout effect, so that keys typed next are not lost.
  useLayoutEffect(() => {
    typed.value = filter;
  }, [filter]);
  useEffect(() => {
    if (typed.value === filter) return undefined;
    return after(TYPING_PAUSE_MS, () => setQuery({ filter: typed.peek(), page: null }));
  }, [typed.value]);
  return (
    <>
      <input
        type="search"
        class="filter"
        data-find
        list={suggestions.length > 0 ? id : undefined}
        value={typed.value}
        placeholder={placeholder}
        aria-label={label}
        autocomplete="off"
        spellcheck={false}
        onInput={(event) => {
          typed.value = event.currentTarget.value;
        }}
      />
      {suggestions.length > 0 && <Suggestions id={id} words={suggestions} />}
    </>
  );
}
