// A program on the types that openapi-typescript generates. `openapi.test.ts` puts the generated file in its place,
// compiles both, and runs this against a server.

import type { components, operations, paths } from './generated.ts';

type Query<Id extends keyof operations> = NonNullable<operations[Id]['parameters']['query']>;
type Schemas = components['schemas'];

const declaration: Schemas['ExchangeDeclaration'] = {
  src: { ns: 'N', queue: 'orders' },
  dst: [
    { ns: 'N', queue: 'mails', selector: "env => env.msg.hdrs.kind === 'mail'" },
    { ns: 'N', queue: 'others' },
  ],
  consumer: { parallel: 2, reserve: true },
};

// @ts-expect-error A misspelt member is found by the compiler already.
const misspelt: Schemas['ExchangeDeclaration']['dst'][number] = { ns: 'N', queue: 'q', selectr: 'false' };

const reserve: Query<'take'> = { reserve: true, to: 0 };
// @ts-expect-error Flags are booleans.
const wrongFlag: Query<'take'> = { reserve: 'yes' };

const kinds: NonNullable<paths['/q/{namespace}/{queue}']['put']['parameters']['header']> = {
  'x-ks-hdr-*': 'kind: mail',
};

/** Inserts, creates an exchange, reserves and commits. Resolves with what it saw. */
export async function run(base: string, authorization: string): Promise<string[]> {
  const seen: string[] = [
    Object.keys(kinds).join(),
    Object.keys(misspelt).join(),
    Object.keys(wrongFlag).join(),
  ];
  const call = async <T>(
    method: string,
    path: string,
    query: Readonly<Record<string, unknown>> = {},
    body?: unknown,
    headers: Readonly<Record<string, string>> = {},
  ): Promise<{ status: number; headers: Headers; json: () => T }> => {
    const url = new URL(path, base);
    for (const [name, value] of Object.entries(query)) url.searchParams.set(name, String(value));
    const response = await fetch(url, {
      method,
      headers: { authorization, 'content-type': 'application/json', ...headers },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    const text = await response.text();
    return { status: response.status, headers: response.headers, json: () => JSON.parse(text) as T };
  };

  const inserted = await call<Schemas['Inserted']>(
    'PUT',
    '/q/N/typed',
    { delay: 0 } satisfies Query<'insert'>,
    {
      total: 1,
    },
  );
  seen.push(`inserted ${typeof inserted.json().id}`);
  const taken = await call<unknown>('GET', '/q/N/typed', reserve);
  const id = taken.headers.get('x-ks-id') ?? '';
  const token = taken.headers.get('x-ks-lease') ?? '';
  const commit = await call<Schemas['Empty']>('PATCH', `/q/N/typed/commit/${id}`, {
    token,
  } satisfies Query<'commit'>);
  seen.push(`committed ${commit.status}`);
  const created = await call<void>('PUT', '/x/typed', {}, declaration);
  seen.push(`created ${created.status}`);
  const record = (await call<Schemas['ExchangeInformation']>('GET', '/x/typed')).json();
  seen.push(`reads ${record.src.q}, forwards to ${record.dst.map(({ q }) => q).join(' and ')}`);
  const trial: Schemas['ExchangeTrialRequest'] = { msg: { hdrs: { kind: 'mail' }, tries: 0 } };
  const tried = (await call<Schemas['ExchangeTrial']>('POST', '/x/typed/test', {}, trial)).json();
  seen.push(`accepted ${tried.dst.map(({ accepted }) => accepted).join()}`);
  await call<void>('DELETE', '/x/typed');
  const page: Query<'listQueues'> = { limit: 10, array: true };
  const queues = (await call<Schemas['QueueArray']>('GET', '/q/N', page)).json();
  const own = queues.data.filter(({ id }) => id === 'typed@N');
  seen.push(`listed ${own.map(({ id, size }) => `${id} ${size}`).join()}`);
  const problem = (await call<Schemas['Problem']>('GET', '/q/N', { limit: 0 })).json();
  seen.push(`${problem.status} ${problem.code} ${problem.parameter}`);
  return seen;
}
