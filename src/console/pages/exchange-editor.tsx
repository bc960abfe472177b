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
import { Button } from '../ui/button.tsx';
import { Card } from '../ui/card.tsx';
import { Field, QueueFields, useWork } from '../ui/form.tsx';
import { SelectorField } from '../ui/selector-field.tsx';
import { Failure, NeedsRight } from '../ui/states.tsx';
import { say } from '../ui/toasts.tsx';
import { DryRunTable } from './dry-run-table.tsx';
import { ExchangeChange } from './exchange-change.tsx';
import type { PageProps } from './page.tsx';

const SAMPLES = 5;
/** How long after the last key a selector is checked: an unfinished one would be a mistake. */
const TYPING_PAUSE_MS = 500;

/** The numbers among the options of an exchange's consumer. The server checks them. */
const CONSUMER_NUMBERS = [
  ['parallel', 'Loops'],
  ['wsize', 'Window, elements'],
] as const;

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
  const { isBusy, error, run } = useWork();
  const mistakes = useSignal<readonly SelectorMistake[]>([]);
  const typedIn = useSignal<number | null>(null);
  const tried = useSignal<readonly TriedElement[] | null>(null);
  const isReviewing = useSignal(false);
  const { src, dst, consumer } = edited.value;
  const setDestination = (at: number, change: Partial<ExchangeDeclaration['dst'][number]>): void => {
    const { dst: present } = edited.peek();
    edited.value = {
      ...edited.peek(),
      dst: present.map((one, i) => (i === at ? { ...one, ...change } : one)),
    };
  };
  const setConsumer = (name: keyof typeof consumer, value: number | boolean | null): void => {
    const { [name]: _, ...others } = edited.peek().consumer;
    edited.value = { ...edited.peek(), consumer: value === null ? others : { ...others, [name]: value } };
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
  const work = (action: () => Promise<void>): Promise<void> =>
    run(() => {
      mistakes.value = [];
      return action().catch((reason: unknown) => {
        const found = mistakeIn(reason);
        if (found !== null) mistakes.value = [found];
        throw reason;
      });
    });
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
      <Failure error={error} />
      <Card title="Source">
        <div class="body row">
          {id === '' && (
            <Field label="Id">
              <input
                value={name.value}
                required
                onInput={(event) => (name.value = event.currentTarget.value)}
              />
            </Field>
          )}
          <QueueFields
            label="From"
            of={src}
            namespaces={namespaces().filter((ns) => may('exchange', ns))}
            onChange={(changed) => (edited.value = { ...edited.value, src: changed })}
          />
          <label class="row">
            <input
              type="checkbox"
              checked={consumer.reserve === true}
              onChange={(event) => setConsumer('reserve', event.currentTarget.checked)}
            />
            Reserve: no element is lost if this node fails
          </label>
        </div>
        <div class="body row">
          {CONSUMER_NUMBERS.map(([option, label]) => (
            <Field key={option} label={label}>
              <input
                type="number"
                min={1}
                placeholder="default"
                value={consumer[option] ?? ''}
                onInput={({ currentTarget: { value } }) =>
                  setConsumer(option, value === '' ? null : Number(value))
                }
              />
            </Field>
          ))}
        </div>
      </Card>
      {dst.map((one, i) => (
        <Card
          key={i}
          title={`Destination ${i + 1}`}
          aside={
            dst.length > 1 && (
              <Button
                icon="trash"
                class="quiet"
                onClick={() => {
                  edited.value = { ...edited.value, dst: dst.filter((_, other) => other !== i) };
                  mistakes.value = [];
                  typedIn.value = null;
                }}
              >
                Remove
              </Button>
            )
          }
        >
          <div class="body stack">
            <div class="row">
              <QueueFields
                label="To"
                of={one}
                namespaces={namespaces().filter((ns) => may('write', ns))}
                onChange={(changed) => setDestination(i, changed)}
              />
            </div>
            <SelectorField
              label={`Selector of destination ${i + 1}`}
              text={one.selector ?? ''}
              problem={mistakes.value.find(({ destination }) => destination === i) ?? null}
              onInput={(selector) => setSelector(i, selector)}
            />
          </div>
        </Card>
      ))}
      <div class="actions">
        <Button
          icon="plus"
          onClick={() => (edited.value = { ...edited.value, dst: [...dst, destinationFrom(src.ns)] })}
        >
          Destination
        </Button>
        <Button
          icon="play"
          disabled={isBusy || name.value === '' || src.queue === ''}
          onClick={() => void test()}
        >
          Dry run
        </Button>
        <a class="button" href={href(version === null ? ['exchanges'] : ['x', id])}>
          Cancel
        </a>
        <button type="submit" class="primary" disabled={isBusy}>
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
          onClose={() => (isReviewing.value = false)}
        />
      )}
    </form>
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
