import { useSignal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import type { ExchangeDeclaration } from '../../model/records.ts';
import {
  mistakeIn,
  mistakesIn,
  type SelectorMistake,
  samplesOf,
  selectorMistake,
  type TriedElement,
  tryOn,
} from '../remote/dry-runs.ts';
import { saveExchange } from '../remote/exchanges.ts';
import { go, href } from '../route.ts';
import { may, namespaces, targetNamespaces } from '../session.ts';
import { after } from '../timers.ts';
import { Icon } from '../ui/icon.tsx';
import { SelectorField } from '../ui/selector-field.tsx';
import { Failure, NeedsRight } from '../ui/states.tsx';
import { say } from '../ui/toasts.tsx';
import { DryRunTable } from './dry-run-table.tsx';
import { ExchangeChange } from './exchange-change.tsx';
import type { PageProps } from './page.tsx';

const SAMPLES = 5;
/** How long after the last key a selector is checked: an unfinished one would be a mistake. */
const TYPING_PAUSE_MS = 500;

type ConsumerNumber = 'parallel' | 'wsize';

/** The numbers among the options of an exchange's consumer, with the server's defaults. */
const CONSUMER_NUMBERS: readonly {
  readonly name: ConsumerNumber;
  readonly label: string;
  readonly max: number;
  readonly fallback: number;
}[] = [
  { name: 'parallel', label: 'Loops', max: 16, fallback: 1 },
  { name: 'wsize', label: 'Window, elements', max: 65_536, fallback: 1_000 },
];

/** Creates an exchange: `/x-new` */
export function NewExchange(_: PageProps) {
  const allowed = namespaces().filter((name) => may('exchange', name));
  const ns = allowed.find((name) => may('read', name)) ?? allowed[0];
  if (ns === undefined) return <NeedsRight title="You may not create exchanges" right="exchange" />;
  return (
    <>
      <div class="page-head">
        <h1>New exchange</h1>
      </div>
      <ExchangeEditor
        id=""
        declared={{ src: { ns, queue: '' }, dst: [destinationFrom(ns)], consumer: { reserve: true } }}
        version={null}
      />
    </>
  );
}

/** A new destination, in a namespace in which the user may write. */
function destinationFrom(source: string): ExchangeDeclaration['dst'][number] {
  return { ns: targetNamespaces(source)[0] ?? source, queue: '' };
}

/** Edits a declaration, tests it with elements of the source, and stores it. */
export function ExchangeEditor({
  id,
  declared,
  version,
}: {
  readonly id: string;
  readonly declared: ExchangeDeclaration;
  readonly version: string | null;
}) {
  const name = useSignal(id);
  const edited = useSignal(declared);
  const error = useSignal<unknown>(null);
  const mistakes = useSignal<readonly SelectorMistake[]>([]);
  const typedIn = useSignal<number | null>(null);
  const tried = useSignal<readonly TriedElement[] | null>(null);
  const isReviewing = useSignal(false);
  const isBusy = useSignal(false);
  const { src, dst, consumer } = edited.value;
  const setDestination = (at: number, change: Partial<ExchangeDeclaration['dst'][number]>): void => {
    const { dst: present } = edited.peek();
    edited.value = {
      ...edited.peek(),
      dst: present.map((one, i) => (i === at ? { ...one, ...change } : one)),
    };
  };
  const setNumber = (option: ConsumerNumber, text: string): void => {
    const { [option]: _, ...others } = edited.peek().consumer;
    edited.value = {
      ...edited.peek(),
      consumer: text === '' ? others : { ...others, [option]: Number(text) },
    };
  };
  const setSelector = (at: number, selector: string): void => {
    setDestination(at, { selector });
    mistakes.value = mistakes.peek().filter(({ destination }) => destination !== at);
    typedIn.value = at;
  };
  const at = typedIn.value;
  const text = at === null ? undefined : dst[at]?.selector;
  useEffect(() => {
    if (at === null) return undefined;
    const abort = new AbortController();
    const cancel = after(TYPING_PAUSE_MS, () => {
      void selectorMistake(edited.peek(), at, abort.signal).then((found) => {
        if (found !== null && !abort.signal.aborted) mistakes.value = [...mistakes.peek(), found];
      });
    });
    return () => {
      cancel();
      abort.abort();
    };
  }, [at, text]);
  const work = async (run: () => Promise<void>): Promise<void> => {
    isBusy.value = true;
    error.value = null;
    mistakes.value = [];
    try {
      await run();
    } catch (reason) {
      error.value = reason;
      const found = mistakeIn(reason);
      if (found !== null) mistakes.value = [found];
    }
    isBusy.value = false;
  };
  const test = (): Promise<void> =>
    work(async () => {
      tried.value = await tryOn(name.value, clean(edited.value), await samplesOf(src, SAMPLES));
      mistakes.value = mistakesIn(tried.value);
    });
  const save = (): Promise<void> =>
    work(async () => {
      isReviewing.value = false;
      const done =
        version === null ? `${name.value} is stored and runs` : `The change of ${name.value} is stored`;
      say(await saveExchange(name.value, clean(edited.value), { version, done }));
      go(href(['x', name.value]));
    });
  return (
    <form
      class="stack"
      onSubmit={(event) => {
        event.preventDefault();
        if (version === null) void save();
        else isReviewing.value = true;
      }}
    >
      {error.value !== null && <Failure error={error.value} />}
      <section class="card">
        <header>
          <h2>Source</h2>
        </header>
        <div class="body row">
          {id === '' && (
            <label class="field">
              <span>Id</span>
              <input
                value={name.value}
                required
                onInput={(event) => {
                  name.value = event.currentTarget.value;
                }}
              />
            </label>
          )}
          <QueueFields
            label="From"
            ns={src.ns}
            queue={src.queue}
            right="exchange"
            onChange={(change) => {
              edited.value = { ...edited.value, src: { ...src, ...change } };
            }}
          />
          <label class="row">
            <input
              type="checkbox"
              checked={consumer.reserve === true}
              onChange={(event) => {
                edited.value = {
                  ...edited.value,
                  consumer: { ...consumer, reserve: event.currentTarget.checked },
                };
              }}
            />
            Reserve: no element is lost if this node fails
          </label>
        </div>
        <div class="body row">
          {CONSUMER_NUMBERS.map(({ name: option, label, max, fallback }) => (
            <label key={option} class="field">
              <span>{label}</span>
              <input
                type="number"
                min={1}
                max={max}
                placeholder={String(fallback)}
                value={consumer[option] ?? ''}
                onInput={(event) => setNumber(option, event.currentTarget.value)}
              />
            </label>
          ))}
        </div>
      </section>
      {dst.map((one, i) => (
        <section key={i} class="card">
          <header>
            <h2 class="grow">Destination {i + 1}</h2>
            {dst.length > 1 && (
              <button
                type="button"
                class="quiet"
                onClick={() => {
                  edited.value = { ...edited.value, dst: dst.filter((_, other) => other !== i) };
                  mistakes.value = [];
                  typedIn.value = null;
                }}
              >
                <Icon name="trash" /> Remove
              </button>
            )}
          </header>
          <div class="body stack">
            <div class="row">
              <QueueFields
                label="To"
                ns={one.ns}
                queue={one.queue}
                right="write"
                onChange={(change) => setDestination(i, change)}
              />
            </div>
            <SelectorField
              label={`Selector of destination ${i + 1}`}
              text={one.selector ?? ''}
              problem={mistakes.value.find(({ destination }) => destination === i) ?? null}
              onInput={(selector) => setSelector(i, selector)}
            />
          </div>
        </section>
      ))}
      <div class="actions">
        <button
          type="button"
          onClick={() => {
            edited.value = { ...edited.value, dst: [...dst, destinationFrom(src.ns)] };
          }}
        >
          <Icon name="plus" /> Destination
        </button>
        <button
          type="button"
          disabled={isBusy.value || name.value === '' || src.queue === ''}
          onClick={() => void test()}
        >
          <Icon name="play" /> Dry run
        </button>
        <a class="button" href={href(version === null ? ['exchanges'] : ['x', id])}>
          Cancel
        </a>
        <button type="submit" class="primary" disabled={isBusy.value}>
          {version === null ? 'Create the exchange' : 'Save the change …'}
        </button>
      </div>
      {tried.value !== null && <DryRunTable rows={tried.value} />}
      {isReviewing.value && (
        <ExchangeChange
          id={id}
          present={declared}
          changed={clean(edited.value)}
          onSave={() => void save()}
          onMistake={(reason) => {
            isReviewing.value = false;
            void work(() => Promise.reject(reason));
          }}
          onClose={() => {
            isReviewing.value = false;
          }}
        />
      )}
    </form>
  );
}

function QueueFields({
  label,
  ns,
  queue,
  right,
  onChange,
}: {
  readonly label: string;
  readonly ns: string;
  readonly queue: string;
  readonly right: 'exchange' | 'write';
  readonly onChange: (change: { readonly ns?: string; readonly queue?: string }) => void;
}) {
  return (
    <>
      <label class="field">
        <span>{label} namespace</span>
        <select value={ns} onChange={(event) => onChange({ ns: event.currentTarget.value })}>
          {namespaces()
            .filter((one) => may(right, one))
            .map((one) => (
              <option key={one} value={one}>
                {one}
              </option>
            ))}
        </select>
      </label>
      <label class="field">
        <span>{label} queue</span>
        <input value={queue} required onInput={(event) => onChange({ queue: event.currentTarget.value })} />
      </label>
    </>
  );
}

/** Removes empty selectors. */
function clean({ src, dst, consumer }: ExchangeDeclaration): ExchangeDeclaration {
  return {
    src,
    dst: dst.map(({ ns, queue, selector }) => ({
      ns,
      queue,
      ...(selector?.trim() && { selector }),
    })),
    consumer,
  };
}
