import { useSignal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import type { ExchangeDeclaration } from '../../model/records.ts';
import { count, named, several } from '../format.ts';
import {
  type ComparedElement,
  compareOn,
  mistakeIn,
  mistakesIn,
  type SelectorMistake,
  samplesOf,
  saveExchange,
  seenPayload,
  selectorMistake,
  type TriedElement,
  tryOn,
} from '../remote/exchanges.ts';
import { useResource } from '../remote/resource.ts';
import { go, href } from '../route.ts';
import { may, namespaces, targetNamespaces } from '../session.ts';
import { after } from '../timers.ts';
import { Button } from '../ui/button.tsx';
import { Card } from '../ui/card.tsx';
import { Dialog, DialogFoot } from '../ui/dialog.tsx';
import { Field, QueueFields, useWork } from '../ui/form.tsx';
import { PlainTable } from '../ui/plain-table.tsx';
import { SelectorField } from '../ui/selector-field.tsx';
import { Badge, Failure, Loaded, NeedsRight } from '../ui/states.tsx';
import { say } from '../ui/toasts.tsx';
import type { PageProps } from './page.tsx';

/** Elements of the source in a dry run, and in the comparison before a change is saved. */
const TRIED = 5;
const COMPARED = 20;
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
  return (
    <>
      <h1>New exchange</h1>
      {ns === undefined ? (
        <section class="card">
          <NeedsRight title="You may not create exchanges" right="exchange" />
        </section>
      ) : (
        <ExchangeEditor
          id=""
          declared={{ src: { ns, queue: '' }, dst: [destinationFrom(ns)], consumer: { reserve: true } }}
          version={null}
        />
      )}
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
      tried.value = await tryOn(name.value, clean(edited.value), await samplesOf(src, TRIED));
      mistakes.value = mistakesIn(tried.value);
    });
  const save = (): Promise<void> =>
    work(async () => {
      isReviewing.value = false;
      const done =
        version === null
          ? `${named(name.value)} is stored and runs`
          : `The change of ${named(name.value)} is stored`;
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
          label={`Destination ${i + 1}`}
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

/** What a selector wrote with `console.log`. */
function LogLines({ lines }: { readonly lines: readonly string[] }) {
  return (
    <>
      {lines.map((line, i) => (
        <div key={i} class="mono muted selector">
          <bdi>{line}</bdi>
        </div>
      ))}
    </>
  );
}

/** The results of a dry run with elements of the source. */
function DryRunTable({ rows }: { readonly rows: readonly TriedElement[] }) {
  return (
    <section class="card" aria-label="Dry run" aria-live="polite">
      <header>
        <h2>Results for the first elements of the source</h2>
      </header>
      {rows.length === 0 ? (
        <p class="body muted">The source has no elements with a text body now.</p>
      ) : (
        <table class="plain">
          <tbody>
            {rows.map(({ id, result: { saw, dst, strays_to, overrun, logs } }) => (
              <tr key={id}>
                <td>
                  <span class="mono">{id}</span>
                  <div class="muted">seen as {seenPayload(saw)}</div>
                </td>
                <td>
                  {dst.map(({ q, accepted, error, logs: ofSelector }, i) => (
                    <div key={i}>
                      <Badge level={error !== null ? 'bad' : accepted ? 'good' : 'plain'}>
                        {accepted ? 'goes to' : 'not to'}
                      </Badge>{' '}
                      {named(q)} {error !== null && <span class="operation-error">{error}</span>}
                      <LogLines lines={ofSelector} />
                    </div>
                  ))}
                  {strays_to !== null && (
                    <div class="muted">no destination accepts it: to {named(strays_to)}</div>
                  )}
                  {overrun !== null && <div class="operation-error">{overrun}</div>}
                  <LogLines lines={logs} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}

/** Shows, before a change of an exchange is saved, what it would do differently with elements of its source. */
function ExchangeChange({
  id,
  present,
  changed,
  onSave,
  onMistake,
  onClose,
}: {
  readonly id: string;
  readonly present: ExchangeDeclaration;
  readonly changed: ExchangeDeclaration;
  readonly onSave: () => void;
  /** Called if a selector has a mistake, so that the change cannot be compared or saved. */
  readonly onMistake: (error: unknown) => void;
  readonly onClose: () => void;
}) {
  const hasOtherSource = present.src.ns !== changed.src.ns || present.src.queue !== changed.src.queue;
  const compared = useResource(id, async (signal) => {
    try {
      return await compareOn(id, changed, await samplesOf(changed.src, COMPARED), signal);
    } catch (error) {
      if (mistakeIn(error) !== null) onMistake(error);
      throw error;
    }
  });
  return (
    <Dialog title={`Change ${named(id)}`} onClose={onClose} wide>
      <div class="body stack">
        {hasOtherSource && (
          <p>
            The source changes from {named(present.src.queue)} to {named(changed.src.queue)}. Elements of{' '}
            {named(present.src.queue)} stay there.
          </p>
        )}
        <Loaded from={compared} what="Testing both with elements of the source">
          {(all) => <Differences compared={all} />}
        </Loaded>
        <DialogFoot isDisabled={compared.isLoading} onCancel={onClose} onConfirm={onSave}>
          Save the change of {named(id)}
        </DialogFoot>
      </div>
    </Dialog>
  );
}

function Differences({ compared }: { readonly compared: readonly ComparedElement[] }) {
  if (compared.length === 0) return <p class="muted">The source has no elements with a text body now.</p>;
  const different = compared.filter(({ difference }) => difference !== 'same');
  const elsewhere = different.filter(({ difference }) => difference === 'elsewhere').length;
  const otherwise = different.length - elsewhere;
  return (
    <>
      <p role="status">
        Of the first {several(compared.length, 'element')} of the source, <b>{count(elsewhere)}</b> would go
        elsewhere
        {otherwise > 0 && `, ${count(otherwise)} would be stored with other content`}, and{' '}
        {count(compared.length - different.length)} would go as before.
      </p>
      {different.length > 0 && (
        <PlainTable
          label="Elements that would go differently"
          isLow
          rows={different}
          keyOf={({ id }) => id}
          columns={[
            { title: 'Element', className: 'mono', cell: ({ id }) => id },
            { title: 'Now', cell: ({ before }) => <Places names={before} /> },
            { title: 'After the change', cell: ({ after }) => <Places names={after} /> },
            {
              title: 'Difference',
              cell: ({ difference }) => (difference === 'elsewhere' ? 'goes elsewhere' : 'other content'),
            },
          ]}
        />
      )}
    </>
  );
}

function Places({ names }: { readonly names: readonly string[] }) {
  return (
    <>
      {names.map((name, i) => (
        <div key={i}>
          <bdi>{name}</bdi>
        </div>
      ))}
    </>
  );
}
