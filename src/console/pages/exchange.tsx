import { useSignal } from '@preact/signals';
import { count } from '../format.ts';
import {
  changeExchange,
  type ExchangeDeclared,
  type ExchangeDetails,
  exchangeDetails,
} from '../remote/exchanges.ts';
import { useResource } from '../remote/resource.ts';
import { go, href, queueHref } from '../route.ts';
import { may } from '../session.ts';
import { Dialog } from '../ui/dialog.tsx';
import { Icon } from '../ui/icon.tsx';
import { Empty, Failure, Loading } from '../ui/states.tsx';
import { act } from '../ui/toasts.tsx';
import { When } from '../ui/when.tsx';
import { ExchangeEditor } from './exchange-editor.tsx';
import { ExchangeState } from './exchanges.tsx';
import type { PageProps } from './page.tsx';

/** One exchange: what it counted, what failed, and its change. `/x/ID`, `/x/ID/edit` */
export function Exchange({ rest }: PageProps) {
  const [id = '', tab] = rest;
  const details = useResource(id, (signal) => exchangeDetails(id, signal), tab === 'edit' ? 0 : 5_000);
  const record = details.value;
  return (
    <>
      <div>
        <nav class="crumbs" aria-label="Where this is">
          <a href={href(['exchanges'])}>Exchanges</a>
        </nav>
        <div class="page-head">
          <h1 class="grow">
            <bdi>{id}</bdi>{' '}
            {record !== null && <ExchangeState stopped={record.stopped} lastError={record.lastError} />}
          </h1>
          {record !== null && tab !== 'edit' && (
            <ExchangeActions id={id} record={record} onDone={details.reload} />
          )}
        </div>
      </div>
      {details.error !== null && <Failure error={details.error} retry={details.reload} />}
      {record === null && details.isLoading && <Loading />}
      {record !== null && tab === 'edit' && (
        <ExchangeEditor id={id} declared={declaredOf(record)} version={record.version ?? null} />
      )}
      {record !== null && tab !== 'edit' && (
        <>
          {record.lastError !== null && <Failure error={record.lastError} />}
          <Destinations record={record} />
          <ExchangeErrors record={record} />
        </>
      )}
    </>
  );
}

function declaredOf({ src, dst, opts }: ExchangeDetails): ExchangeDeclared {
  return {
    src: { ns: src.ns, queue: src.q },
    dst: dst.map(({ ns, q, selector }) => ({ ns, queue: q, ...(selector !== undefined && { selector }) })),
    consumer: opts,
  };
}

/** Whether the user may change it: the rights that the server asks for. */
function mayRule({ src, dst }: ExchangeDetails): boolean {
  const isVisible = dst.every(({ ns, hidden }) => hidden !== true && may('write', ns));
  return isVisible && may('exchange', src.ns) && may('read', src.ns);
}

function ExchangeActions({
  id,
  record,
  onDone,
}: {
  readonly id: string;
  readonly record: ExchangeDetails;
  readonly onDone: () => void;
}) {
  const isAsking = useSignal(false);
  if (!mayRule(record)) return null;
  const isStopped = record.stopped === true || record.lastError !== null;
  const change = (verb: 'start' | 'stop' | 'delete', said: string): Promise<void> =>
    act(async () => {
      isAsking.value = false;
      await changeExchange(id, verb);
      if (verb === 'delete') go(href(['exchanges']));
      else onDone();
      return said;
    });
  return (
    <div class="actions">
      <button
        type="button"
        onClick={() =>
          void (isStopped ? change('start', `${id} runs`) : change('stop', `${id} is stopped on all nodes`))
        }
      >
        <Icon name={isStopped ? 'play' : 'paused'} /> {isStopped ? 'Start' : 'Stop'}
      </button>
      <a class="button" href={href(['x', id, 'edit'])}>
        <Icon name="code" /> Edit
      </a>
      <button type="button" class="danger" onClick={() => (isAsking.value = true)}>
        <Icon name="trash" /> Delete …
      </button>
      {isAsking.value && (
        <Dialog title={`Delete ${id}`} onClose={() => (isAsking.value = false)}>
          <div class="body">
            <p>
              The exchange {id} stops forwarding from {record.src.q} and is deleted. Its queues and their
              elements stay.
            </p>
            <div class="foot">
              <button type="button" onClick={() => (isAsking.value = false)}>
                Cancel
              </button>
              <button
                type="button"
                class="primary danger"
                onClick={() => void change('delete', `${id} is deleted`)}
              >
                Delete the exchange {id}
              </button>
            </div>
          </div>
        </Dialog>
      )}
    </div>
  );
}

function Destinations({ record: { src, dst, stats, loops } }: { readonly record: ExchangeDetails }) {
  return (
    <section class="card">
      <header>
        <h2 class="grow">
          From <a href={queueHref(src.ns, src.q)}>{src.q}</a> <span class="muted">{src.ns}</span>
        </h2>
        <span class="muted">
          no route {count(stats.no_route)} · too many hops {count(stats.too_many_hops)} · put back{' '}
          {count(stats.put_back)}
        </span>
      </header>
      {loops.length > 0 && (
        <p class="bar">
          <Icon name="refresh" /> In a loop: {loops[0]?.join(' → ')}
        </p>
      )}
      <div class="scrolls">
        <table class="plain">
          <thead>
            <tr>
              <th scope="col">To</th>
              <th scope="col">Selector</th>
              <th scope="col" class="number">
                Matched
              </th>
              <th scope="col" class="number">
                Skipped
              </th>
              <th scope="col" class="number">
                Failed
              </th>
            </tr>
          </thead>
          <tbody>
            {dst.map(({ q, ns, selector, hidden }, i) => (
              <tr key={i}>
                <td>
                  {hidden === true ? (
                    <span class="muted">hidden from you</span>
                  ) : (
                    <>
                      <a href={queueHref(ns, q)}>{q}</a> <span class="muted">{ns}</span>
                    </>
                  )}
                </td>
                <td>
                  {selector === undefined ? (
                    <span class="muted">all elements</span>
                  ) : (
                    <code class="selector">{selector}</code>
                  )}
                </td>
                <td class="number">{count(stats.dst[i]?.matched ?? 0)}</td>
                <td class="number">{count(stats.dst[i]?.skipped ?? 0)}</td>
                <td class="number">{count(stats.dst[i]?.failed ?? 0)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function ExchangeErrors({ record: { errors, dst } }: { readonly record: ExchangeDetails }) {
  return (
    <section class="card">
      <header>
        <h2>Errors</h2>
      </header>
      {errors.length === 0 ? (
        <Empty title="No selector and no destination failed">Since this node started the exchange.</Empty>
      ) : (
        <div class="scrolls">
          <table class="plain">
            <thead>
              <tr>
                <th scope="col">Destination</th>
                <th scope="col">Error</th>
                <th scope="col" class="number">
                  Times
                </th>
                <th scope="col">Last</th>
              </tr>
            </thead>
            <tbody>
              {errors.map(({ destination, message, line, count: times, at }) => (
                <tr key={`${destination} ${message}`}>
                  <td>{dst[destination]?.q}</td>
                  <td class="selector">
                    {line !== null && <span class="muted">line {line}: </span>}
                    {message}
                  </td>
                  <td class="number">{count(times)}</td>
                  <td>
                    <When at={at} />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}
