import { useSignal } from '@preact/signals';
import { ApiError, messageOf } from '../api.ts';
import { listElements } from '../remote/elements.ts';
import { type DryRunResult, dryRun, type ExchangeDeclared, saveExchange } from '../remote/exchanges.ts';
import { go, href } from '../route.ts';
import { may, namespaces } from '../session.ts';
import { Icon } from '../ui/icon.tsx';
import { Badge, Failure } from '../ui/states.tsx';
import { say } from '../ui/toasts.tsx';
import type { PageProps } from './page.tsx';

const SAMPLES = 5;

/** What a dry run says of one element. */
interface DryRunRow {
  readonly id: string;
  readonly result: DryRunResult;
}

/** A new exchange: `/x-new` */
export function NewExchange(_: PageProps) {
  const ns = namespaces().find((name) => may('exchange', name)) ?? '';
  return (
    <>
      <div class="page-head">
        <h1>New exchange</h1>
      </div>
      <ExchangeEditor
        id=""
        declared={{ src: { ns, queue: '' }, dst: [{ ns, queue: '' }], consumer: { reserve: true } }}
        version={null}
      />
    </>
  );
}

/** Changes a declaration, tries it on real elements of the source, and stores it. */
export function ExchangeEditor({
  id,
  declared,
  version,
}: {
  readonly id: string;
  readonly declared: ExchangeDeclared;
  readonly version: string | null;
}) {
  const name = useSignal(id);
  const edited = useSignal(declared);
  const error = useSignal<unknown>(null);
  const tried = useSignal<readonly DryRunRow[] | null>(null);
  const isBusy = useSignal(false);
  const { src, dst, consumer } = edited.value;
  const setDestination = (at: number, change: Partial<ExchangeDeclared['dst'][number]>): void => {
    edited.value = { ...edited.value, dst: dst.map((one, i) => (i === at ? { ...one, ...change } : one)) };
  };
  const work = async (run: () => Promise<void>): Promise<void> => {
    isBusy.value = true;
    error.value = null;
    try {
      await run();
    } catch (reason) {
      error.value = reason;
    }
    isBusy.value = false;
  };
  const test = (): Promise<void> =>
    work(async () => {
      const filter = { state: null, group: null, search: '' };
      const page = await listElements(src, filter, {
        after: null,
        hidesBodies: false,
        signal: new AbortController().signal,
      });
      const some = page.elements.filter(({ text }) => text !== undefined).slice(0, SAMPLES);
      tried.value = await Promise.all(
        some.map(async ({ id: of, text = '', contentType, headers }) => ({
          id: of,
          result: await dryRun(
            name.value,
            clean(edited.value),
            { payload: payloadOf(text, contentType), hdrs: headers },
            contentType ?? '',
          ),
        })),
      );
    });
  const save = (): Promise<void> =>
    work(async () => {
      await saveExchange(name.value, clean(edited.value), version);
      say(`${name.value} is stored and runs`);
      go(href(['x', name.value]));
    });
  return (
    <form
      class="stack"
      onSubmit={(event) => {
        event.preventDefault();
        void save();
      }}
    >
      {error.value !== null && <Failure error={withPlace(error.value)} />}
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
            Reserve: nothing is lost if this node dies
          </label>
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
                  edited.value = { ...edited.value, dst: dst.filter((_, at) => at !== i) };
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
            <label class="field">
              <span>Selector</span>
              <textarea
                rows={4}
                spellcheck={false}
                value={one.selector ?? ''}
                placeholder="env => env.msg.payload.amount > 100"
                onInput={(event) => setDestination(i, { selector: event.currentTarget.value })}
              />
              <small>A function of the element; empty: every element goes there.</small>
            </label>
          </div>
        </section>
      ))}
      <div class="actions">
        <button
          type="button"
          onClick={() => {
            edited.value = { ...edited.value, dst: [...dst, { ns: src.ns, queue: '' }] };
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
        <button type="submit" class="primary" disabled={isBusy.value}>
          {id === '' ? 'Create the exchange' : 'Save the change'}
        </button>
      </div>
      {tried.value !== null && <DryRunTable rows={tried.value} />}
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

function DryRunTable({ rows }: { readonly rows: readonly DryRunRow[] }) {
  return (
    <section class="card" aria-label="Dry run" aria-live="polite">
      <header>
        <h2>What would become of the first elements of the source</h2>
      </header>
      {rows.length === 0 ? (
        <p class="body muted">The source has no elements with a text body now.</p>
      ) : (
        <table class="plain">
          <tbody>
            {rows.map(({ id, result: { dst, strays_to } }) => (
              <tr key={id}>
                <td class="mono">{id}</td>
                <td>
                  {dst.map(({ q, accepted, error }, i) => (
                    <div key={i}>
                      <Badge level={error !== null ? 'bad' : accepted ? 'good' : 'plain'}>
                        {accepted ? 'goes to' : 'not to'}
                      </Badge>{' '}
                      {q} {error !== null && <span class="operation-error">{error}</span>}
                    </div>
                  ))}
                  {strays_to !== null && <div class="muted">no destination accepts it: to {strays_to}</div>}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}

/** An empty selector is none. */
function clean({ src, dst, consumer }: ExchangeDeclared): ExchangeDeclared {
  return {
    src,
    dst: dst.map(({ ns, queue, selector = '' }) => ({
      ns,
      queue,
      ...(selector.trim() !== '' && { selector }),
    })),
    consumer,
  };
}

function payloadOf(text: string, contentType: string | null): unknown {
  if (contentType?.includes('json') !== true) return text;
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return text;
  }
}

/** An error of a selector says where it is. */
function withPlace(error: unknown): string {
  if (!(error instanceof ApiError)) return messageOf(error);
  const { parameter, line } = error.details;
  const place = [parameter, line === undefined || line === null ? null : `line ${line}`]
    .filter(Boolean)
    .join(', ');
  return place === '' ? error.message : `${error.message} (${place})`;
}
