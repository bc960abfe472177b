import type { Answer } from '../../test/support/http-client.ts';
import { Helper } from '../process.ts';

/** The constant answers of `take.ts`, in a form that fits into an argument. */
export interface ConstantAnswers {
  readonly get: ConstantAnswer;
  readonly patch: ConstantAnswer;
}

interface ConstantAnswer {
  /** Alternating names and values, as `writeHead` accepts them. */
  readonly headers: string[];
  /** In Base64. */
  readonly body: string;
}

export interface Reference extends AsyncDisposable {
  readonly url: string;
  readonly pid: number;
}

/** Headers that Node's server adds to every answer. */
const OWN_HEADERS = ['date', 'connection', 'keep-alive', 'transfer-encoding'];

export function startInsertReference(): Promise<Reference> {
  return start(new URL('./insert.ts', import.meta.url), []);
}

/** Starts a server that repeats these answers of the real server, including headers. */
export function startTakeReference(get: Answer, patch: Answer = get): Promise<Reference> {
  const answers: ConstantAnswers = { get: constantOf(get), patch: constantOf(patch) };
  return start(new URL('./take.ts', import.meta.url), [JSON.stringify(answers)]);
}

function constantOf({ rawHeaders, body }: Answer): ConstantAnswer {
  const headers: string[] = [];
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    const [name = '', value = ''] = rawHeaders.slice(at, at + 2);
    if (!OWN_HEADERS.includes(name.toLowerCase())) headers.push(name, value);
  }
  return { headers, body: body.toString('base64') };
}

async function start(program: URL, args: readonly string[]): Promise<Reference> {
  const [helper, { port }] = await Helper.start<{ port: number }>(program, args);
  return { url: `http://127.0.0.1:${port}`, pid: helper.pid, [Symbol.asyncDispose]: () => helper.stop() };
}
