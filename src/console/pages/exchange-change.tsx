import type { ExchangeDeclaration } from '../../model/records.ts';
import { count, several } from '../format.ts';
import { type ComparedElement, compareOn, mistakeIn, samplesOf } from '../remote/dry-runs.ts';
import { useResource } from '../remote/resource.ts';
import { Dialog, DialogFoot } from '../ui/dialog.tsx';
import { PlainTable } from '../ui/plain-table.tsx';
import { Loaded } from '../ui/states.tsx';

/** Elements of the source that a change is tested with. */
const SAMPLES = 20;

/** Shows, before a change of an exchange is saved, what it would do differently with elements of its source. */
export function ExchangeChange({
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
  const compared = useResource(id, async () => {
    try {
      return await compareOn(id, changed, await samplesOf(changed.src, SAMPLES));
    } catch (error) {
      if (mistakeIn(error) !== null) onMistake(error);
      throw error;
    }
  });
  return (
    <Dialog title={`Change ${id}`} onClose={onClose} wide>
      <div class="body stack">
        {hasOtherSource && (
          <p>
            The source changes from {present.src.queue} to {changed.src.queue}. Elements of{' '}
            {present.src.queue} stay there.
          </p>
        )}
        <Loaded from={compared} what="Testing both with elements of the source">
          {(all) => <Differences compared={all} />}
        </Loaded>
        <DialogFoot isDisabled={compared.isLoading} onCancel={onClose} onConfirm={onSave}>
          Save the change of {id}
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
