import { useRef } from 'preact/hooks';
import type { QueueRecord } from '../../model/records.ts';
import { ApiError, call, type QueueNamed, queuePath } from '../api.ts';
import { named } from '../format.ts';
import { toByteString } from '../remote/elements.ts';
import { useGet } from '../remote/resource.ts';
import { may } from '../session.ts';
import { Dialog, DialogFoot } from './dialog.tsx';
import { Field, onData, Suggestions, useWork } from './form.tsx';
import { Failure } from './states.tsx';
import { say } from './toasts.tsx';

/** The initial values of a new element. */
interface ElementDraft {
  readonly text: string;
  readonly contentType: string;
  readonly headers: readonly (readonly [string, string])[];
  /** On a stream: the groups that may consume it, separated by commas; empty: the default groups. */
  readonly groups: string;
}

const EMPTY: ElementDraft = { text: '', contentType: 'application/json', headers: [], groups: '' };
const TYPES = [
  'application/json',
  'text/plain',
  'application/xml',
  'application/x-www-form-urlencoded',
  'application/octet-stream',
];

/** Inserts a new element, or an edited copy of an existing one. */
export function InsertDialog({
  into,
  draft = EMPTY,
  onClose,
}: {
  readonly into: QueueNamed;
  readonly draft?: ElementDraft;
  readonly onClose: () => void;
}) {
  const { ns, queue } = into;
  const status = useGet<QueueRecord>(may('read', ns) ? queuePath(into, 'status') : null);
  const known = status.value?.groups;
  const { isBusy, error, run } = useWork();
  const attempt = useRef({ content: '', key: '' });
  /** Returns the same idempotency key for the same content, to repeat an insert whose response was lost. */
  const keyFor = (content: string): string => {
    if (attempt.current.content !== content) attempt.current = { content, key: randomKey() };
    return attempt.current.key;
  };
  const insert = async (data: FormData): Promise<void> => {
    const field = (name: string): string => String(data.get(name) ?? '');
    const headers = readHeaders(field('headers'));
    const content = ['text', 'contentType', 'headers', 'delay', 'groups'].map(field);
    try {
      await call(queuePath(into), {
        method: 'PUT',
        query: { delay: field('delay'), groups: field('groups') },
        headers: {
          ...headers,
          'content-type': field('contentType') || 'application/octet-stream',
          'idempotency-key': keyFor(JSON.stringify(content)),
        },
        body: draft.text.includes('\r') ? field('text').replaceAll('\n', '\r\n') : field('text'),
      });
    } catch (reason) {
      const isLost = reason instanceof ApiError && reason.status === 0;
      throw isLost
        ? 'The server did not respond. Try again when it does: the element is stored only once.'
        : reason;
    }
    say(`An element was inserted into ${named(queue)}`);
    onClose();
  };
  return (
    <Dialog title={`Insert into ${named(queue)}`} onClose={onClose} wide>
      <form onSubmit={onData((data) => void run(() => insert(data)))}>
        <Failure error={error} />
        <Field label="Body">
          <textarea name="text" rows={10} spellcheck={false} defaultValue={draft.text} />
        </Field>
        <div class="row">
          <Field label="Content type">
            <input name="contentType" list="content-types" defaultValue={draft.contentType} />
            <Suggestions id="content-types" words={TYPES} />
          </Field>
          <Field label="Delay in seconds">
            <input name="delay" type="number" min={0} step="any" placeholder="0" />
          </Field>
          {(known !== undefined || draft.groups !== '') && (
            <Field label="Groups">
              <input
                name="groups"
                list="groups"
                defaultValue={draft.groups}
                placeholder="those of the namespace"
                title="Separated by commas"
                autocomplete="off"
              />
              <Suggestions id="groups" words={Object.keys(known ?? {})} />
            </Field>
          )}
        </div>
        <Field label="Headers" hint="One per line: name, colon, value.">
          <textarea
            name="headers"
            rows={3}
            spellcheck={false}
            placeholder="tenant: acme"
            defaultValue={draft.headers.map(([name, value]) => `${name}: ${value}`).join('\n')}
          />
        </Field>
        <DialogFoot isDisabled={isBusy} onCancel={onClose}>
          Insert
        </DialogFoot>
      </form>
    </Dialog>
  );
}

/** Whether all lines of a text end alike. If not, a text area, which normalizes line ends, would change the text. */
export function hasUniformLineEnds(text: string): boolean {
  return !text.includes('\r') || text === text.replace(/\r\n?/g, '\n').replaceAll('\n', '\r\n');
}

/** `crypto.randomUUID` exists only in secure contexts. */
function randomKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) =>
    byte.toString(16).padStart(2, '0'),
  ).join('');
}

const HEADER_NAME = /^[\w!#$%&'*+.^`|~-]+$/;

/** @throws Error for a line that is not a header */
function readHeaders(text: string): Record<string, string> {
  const lines = text.split('\n').filter((line) => line.trim() !== '');
  const headers = new Map<string, string>();
  for (const line of lines) {
    const shown = line.slice(0, 64);
    const colon = line.indexOf(':');
    if (colon < 1) throw new Error(`Header line "${shown}" has no colon. Write name: value.`);
    const name = `x-ks-hdr-${line.slice(0, colon).trim().toLowerCase()}`;
    if (!HEADER_NAME.test(name))
      throw new Error(
        `The name in header line "${shown}" has a character that is not allowed. Allowed: letters, digits and !#$%&'*+.^_\`|~-`,
      );
    if (headers.has(name)) throw new Error(`Header line "${shown}" repeats a name. Write each name once.`);
    headers.set(name, toByteString(line.slice(colon + 1).trim()));
  }
  return Object.fromEntries(headers);
}
