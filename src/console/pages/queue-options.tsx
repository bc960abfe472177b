import { useSignal } from '@preact/signals';
import type { OptionName, OptionsRecord, ShownOptions } from '../../model/records.ts';
import { count, duration, named, several } from '../format.ts';
import { keyOf, type QueueNamed } from '../remote/live.ts';
import { readOptions, storeOptions } from '../remote/queues.ts';
import { useResource } from '../remote/resource.ts';
import { may } from '../session.ts';
import { Icon } from '../ui/icon.tsx';
import { PlainTable } from '../ui/plain-table.tsx';
import { Failure, Loading, NeedsRight } from '../ui/states.tsx';
import { say } from '../ui/toasts.tsx';

/** A field of an option. An empty name stands for the option itself. */
interface OptionField {
  readonly name: string;
  readonly label: string;
  readonly isText?: boolean;
  readonly isRequired?: boolean;
}

interface OptionForm {
  readonly name: OptionName;
  readonly title: string;
  readonly meaning: string;
  readonly fields: readonly OptionField[];
  /** Whether the option may be set to none. */
  readonly mayBeNone: boolean;
}

const SECONDS: readonly OptionField[] = [{ name: '', label: 'Seconds', isRequired: true }];

const FORMS: readonly OptionForm[] = [
  {
    name: 'lease',
    title: 'Lease',
    meaning: 'how long a reservation lasts if the reserve names no lease',
    fields: SECONDS,
    mayBeNone: false,
  },
  {
    name: 'deadLetter',
    title: 'Dead letter',
    meaning: 'after how many failed tries an element moves to which queue',
    fields: [
      { name: 'maxTries', label: 'Tries', isRequired: true },
      { name: 'queue', label: 'Queue of the same namespace', isText: true },
    ],
    mayBeNone: true,
  },
  {
    name: 'retryDelay',
    title: 'Retry delay',
    meaning: 'how long an element waits after a failed try',
    fields: [
      { name: 'first', label: 'First, seconds', isRequired: true },
      { name: 'factor', label: 'Factor' },
      { name: 'max', label: 'Longest, seconds' },
      { name: 'jitter', label: 'Jitter, 0 to 1' },
    ],
    mayBeNone: true,
  },
  {
    name: 'retention',
    title: 'Retention',
    meaning: 'how long a stream keeps an element',
    fields: SECONDS,
    mayBeNone: true,
  },
  {
    name: 'ttl',
    title: 'Time to live',
    meaning: 'for elements inserted without one',
    fields: SECONDS,
    mayBeNone: true,
  },
  {
    name: 'maxElements',
    title: 'Bound',
    meaning: 'how many elements the queue may hold',
    fields: [{ name: '', label: 'Elements', isRequired: true }],
    mayBeNone: true,
  },
];

/** The effective options of a queue and their origin, and a form for users who may change them. */
export function QueueOptionsTab({ of }: { readonly of: QueueNamed }) {
  const isAllowed = may('read', of.ns);
  const options = useResource(keyOf(of), (signal) =>
    isAllowed ? readOptions(of, signal) : Promise.resolve(null),
  );
  const isChanging = useSignal(false);
  const record = options.value;
  if (!isAllowed) return <NeedsRight title="You may not see the options" right="read" ns={of.ns} />;
  return (
    <>
      {options.error !== null && <Failure error={options.error} retry={options.reload} />}
      {record === null && options.isLoading && <Loading />}
      {record !== null && (
        <section class="card">
          <header>
            <h2 class="grow">Options</h2>
            {may('manage', of.ns) && !isChanging.value && (
              <button type="button" onClick={() => (isChanging.value = true)}>
                <Icon name="code" /> Change …
              </button>
            )}
          </header>
          {isChanging.value ? (
            <OptionsForm
              of={of}
              record={record}
              onDone={() => {
                isChanging.value = false;
                options.reload();
              }}
            />
          ) : (
            <OptionsTable record={record} />
          )}
        </section>
      )}
    </>
  );
}

function OptionsTable({ record: { effective, sources, pattern } }: { readonly record: OptionsRecord }) {
  const origins = {
    stored: 'stored with the queue',
    pattern: `pattern ${pattern} of the configuration`,
    namespace: 'the namespace',
  };
  return (
    <PlainTable
      label="Options"
      rows={FORMS}
      keyOf={({ name }) => name}
      columns={[
        { title: 'Option', cell: ({ title }) => title },
        { title: 'Value', cell: ({ name }) => valueText(name, effective[name]) },
        { title: 'From', cell: ({ name }) => origins[sources[name]] },
        { title: 'Meaning', cell: ({ meaning }) => <span class="muted">{meaning}</span> },
      ]}
    />
  );
}

/** A duration, with the exact seconds if the rounded text would hide some. */
function exactDuration(seconds: number): string {
  if (seconds < 60) return `${seconds} s`;
  const unit = seconds < 3_600 ? 60 : seconds < 86_400 ? 3_600 : 86_400;
  const about = duration(seconds * 1000);
  return seconds % unit === 0 ? about : `${about} (${count(seconds)} s)`;
}

function valueText(name: OptionName, value: ShownOptions[OptionName]): string {
  if (value === null || value === undefined) return 'none';
  if (typeof value === 'number') return name === 'maxElements' ? count(value) : exactDuration(value);
  if ('maxTries' in value) {
    return `after ${several(value.maxTries, 'failed try', 'failed tries')}${value.queue === undefined ? '' : ` to ${value.queue}`}`;
  }
  const { first, factor, max, jitter } = value;
  return [
    exactDuration(first),
    factor !== undefined && `× ${factor}`,
    max !== undefined && `up to ${exactDuration(max)}`,
    jitter !== undefined && jitter > 0 && `up to ${Math.round(jitter * 100)} % shorter`,
  ]
    .filter(Boolean)
    .join(', ');
}

type OptionMode = 'configured' | 'own' | 'none';

function modeOf({ stored }: OptionsRecord, name: OptionName): OptionMode {
  if (!Object.hasOwn(stored, name)) return 'configured';
  return stored[name] === null ? 'none' : 'own';
}

function OptionsForm({
  of,
  record,
  onDone,
}: {
  readonly of: QueueNamed;
  readonly record: OptionsRecord;
  readonly onDone: () => void;
}) {
  const modes = useSignal(
    Object.fromEntries(FORMS.map(({ name }) => [name, modeOf(record, name)])) as Record<
      OptionName,
      OptionMode
    >,
  );
  const error = useSignal<unknown>(null);
  const save = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    const data = new FormData(event.currentTarget as HTMLFormElement);
    const stored = FORMS.flatMap((form) => {
      const mode = modes.value[form.name];
      if (mode === 'configured') return [];
      return [[form.name, mode === 'none' ? null : readFields(form, data)]];
    });
    try {
      await storeOptions(of, Object.fromEntries(stored) as ShownOptions, record.version);
      say(`The options of ${named(of.queue)} are stored`);
      onDone();
    } catch (reason) {
      error.value = reason;
    }
  };
  return (
    <form class="body stack" onSubmit={save}>
      {error.value !== null && <Failure error={error.value} />}
      {FORMS.map((form) => (
        <fieldset key={form.name} class="row option">
          <legend>
            {form.title} <span class="muted">{form.meaning}</span>
          </legend>
          <label class="field">
            <span>{form.title} of this queue</span>
            <select
              value={modes.value[form.name]}
              onChange={(event) => {
                modes.value = { ...modes.value, [form.name]: event.currentTarget.value as OptionMode };
              }}
            >
              <option value="configured">as configured</option>
              <option value="own">own value</option>
              {form.mayBeNone && <option value="none">none</option>}
            </select>
          </label>
          {modes.value[form.name] === 'own' &&
            form.fields.map((field) => (
              <OptionInput key={field.name} form={form} field={field} record={record} />
            ))}
        </fieldset>
      ))}
      <div class="foot">
        <button type="button" onClick={onDone}>
          Cancel
        </button>
        <button type="submit" class="primary">
          Store the options of {of.queue}
        </button>
      </div>
    </form>
  );
}

function OptionInput({
  form,
  field,
  record,
}: {
  readonly form: OptionForm;
  readonly field: OptionField;
  readonly record: OptionsRecord;
}) {
  const name = `${form.name}.${field.name}`;
  const text = fieldText(form, field, record);
  const isRequired = field.isRequired === true;
  if (field.isText === true) {
    return (
      <label class="field">
        <span>{field.label}</span>
        <input name={name} required={isRequired} defaultValue={text} />
      </label>
    );
  }
  return (
    <label class="field">
      <span>{field.label}</span>
      <input name={name} type="number" step="any" min={0} required={isRequired} defaultValue={text} />
    </label>
  );
}

/** The initial value of a field: the effective one. */
function fieldText({ name }: OptionForm, field: OptionField, { effective }: OptionsRecord): string {
  const value = effective[name];
  if (value === null) return '';
  if (typeof value === 'number') return String(value);
  return String((value as Readonly<Record<string, unknown>>)[field.name] ?? '');
}

/** Reads the fields of an option. Empty fields are left out. */
function readFields(form: OptionForm, data: FormData): unknown {
  const given = form.fields.flatMap((field) => {
    const text = String(data.get(`${form.name}.${field.name}`) ?? '').trim();
    return text === '' ? [] : [[field.name, field.isText === true ? text : Number(text)] as const];
  });
  const [first] = given;
  return first?.[0] === '' ? first[1] : Object.fromEntries(given);
}
