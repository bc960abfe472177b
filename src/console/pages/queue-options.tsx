import { useSignal } from '@preact/signals';
import type { OptionName, OptionsRecord, ShownOptions } from '../../model/records.ts';
import { call, type QueueNamed, queuePath } from '../api.ts';
import { count, duration, named, several } from '../format.ts';
import { useGet } from '../remote/resource.ts';
import { may } from '../session.ts';
import { Button } from '../ui/button.tsx';
import { Card } from '../ui/card.tsx';
import { DialogFoot } from '../ui/dialog.tsx';
import { Field, onData, Select, useWork } from '../ui/form.tsx';
import { PlainTable } from '../ui/plain-table.tsx';
import { Failure, Loaded, NeedsRight } from '../ui/states.tsx';
import { say } from '../ui/toasts.tsx';

/** A field of an option. An empty name stands for the option itself. */
interface OptionField {
  readonly name: string;
  readonly label: string;
  readonly isText?: boolean;
}

interface OptionForm {
  readonly name: OptionName;
  readonly title: string;
  readonly meaning: string;
  /** The first one is required. */
  readonly fields: readonly OptionField[];
  /** Whether the option may be set to none. */
  readonly mayBeNone: boolean;
}

const SECONDS: readonly OptionField[] = [{ name: '', label: 'Seconds' }];

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
      { name: 'maxTries', label: 'Tries' },
      { name: 'queue', label: 'Queue of the same namespace', isText: true },
    ],
    mayBeNone: true,
  },
  {
    name: 'retryDelay',
    title: 'Retry delay',
    meaning: 'how long an element waits after a failed try',
    fields: [
      { name: 'first', label: 'First, seconds' },
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
    fields: [{ name: '', label: 'Elements' }],
    mayBeNone: true,
  },
];

/** The effective options of a queue and their origin, and a form for users who may change them. */
export function QueueOptionsTab({ of }: { readonly of: QueueNamed }) {
  const isAllowed = may('read', of.ns);
  const options = useGet<OptionsRecord>(isAllowed ? queuePath(of, 'options') : null);
  const isChanging = useSignal(false);
  if (!isAllowed) return <NeedsRight title="You may not see the options" right="read" ns={of.ns} />;
  return (
    <Loaded from={options}>
      {(record) => (
        <Card
          title="Options"
          aside={
            may('manage', of.ns) &&
            !isChanging.value && (
              <Button icon="code" onClick={() => (isChanging.value = true)}>
                Change …
              </Button>
            )
          }
        >
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
        </Card>
      )}
    </Loaded>
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
        { title: 'Value', className: 'option-value', cell: ({ name }) => valueText(name, effective[name]) },
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

const MODES = [
  ['configured', 'as configured'],
  ['own', 'own value'],
  ['none', 'none'],
] as const;
type OptionMode = (typeof MODES)[number][0];

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
  const { error, isBusy, run } = useWork();
  const save = async (data: FormData): Promise<void> => {
    const stored = FORMS.flatMap((form) => {
      const mode = modes.value[form.name];
      if (mode === 'configured') return [];
      return [[form.name, mode === 'none' ? null : readFields(form, data)]];
    });
    // Without options the configuration's apply. Rejected if they have changed since the user saw them.
    const headers = { 'if-match': `"${record.version}"` };
    await call(
      queuePath(of, 'options'),
      stored.length === 0
        ? { method: 'DELETE', headers }
        : { method: 'PUT', headers, json: Object.fromEntries(stored) },
    );
    say(`The options of ${named(of.queue)} are stored`);
    onDone();
  };
  return (
    <form class="body stack" onSubmit={onData((data) => void run(() => save(data)))}>
      <Failure error={error} />
      {FORMS.map((form) => (
        <fieldset key={form.name} class="row option">
          <legend>
            {form.title} <span class="muted">{form.meaning}</span>
          </legend>
          <Field label={`${form.title} of this queue`}>
            <Select
              value={modes.value[form.name]}
              options={form.mayBeNone ? MODES : MODES.filter(([mode]) => mode !== 'none')}
              onChange={(mode) => (modes.value = { ...modes.value, [form.name]: mode })}
            />
          </Field>
          {modes.value[form.name] === 'own' &&
            form.fields.map((field, i) => {
              const shared = {
                name: `${form.name}.${field.name}`,
                required: i === 0,
                defaultValue: fieldText(form, field, record),
              };
              return (
                <Field key={field.name} label={field.label}>
                  {field.isText === true ? (
                    <input {...shared} />
                  ) : (
                    <input type="number" step="any" min={0} {...shared} />
                  )}
                </Field>
              );
            })}
        </fieldset>
      ))}
      <DialogFoot isDisabled={isBusy} onCancel={onDone}>
        Store the options of {named(of.queue)}
      </DialogFoot>
    </form>
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
