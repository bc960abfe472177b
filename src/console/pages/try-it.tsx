import { BASE, type QueueNamed } from '../api.ts';
import { shellWord } from '../format.ts';
import { session } from '../session.ts';
import { Snippet } from '../ui/snippet.tsx';

/** Snippets for a shell or a program, with this server's address. */
export function TryIt({ of: { ns, queue } }: { readonly of: QueueNamed }) {
  const url = new URL(`q/${encodeURIComponent(ns)}/${encodeURIComponent(queue)}`, BASE).href;
  const server = BASE.href.replace(/\/$/, '');
  const user = session.value?.user ?? 'USER';
  const curl = `curl -u ${shellWord(user)}`;
  const destination = `/q/${encodeURIComponent(ns)}/${encodeURIComponent(queue)}`;
  return (
    <div class="columns">
      <Snippet
        title="Insert, with curl"
        text={`${curl} -X PUT ${shellWord(url)} \\\n  -H 'content-type: application/json' \\\n  -d '{"hello": "world"}'`}
      />
      <Snippet
        title="Get the next element, waiting 30 s"
        text={`${curl} -i ${shellWord(`${url}?to=30000`)}`}
      />
      <Snippet
        title="Reserve, then commit"
        text={`${curl} -i ${shellWord(`${url}?reserve=true&to=30000`)}\n${curl} -X PATCH ${shellWord(`${url}/commit/ID?token=TOKEN`)}`}
      />
      <Snippet title="Browse, without taking" text={`${curl} ${shellWord(`${url}/elements?limit=10`)}`} />
      <Snippet
        title="Insert and process, with TypeScript"
        text={`import { Quayside, Worker } from 'quayside/client';\n\nconst quayside = new Quayside({ url: ${JSON.stringify(server)}, auth: { user: ${JSON.stringify(user)}, password: '…' } });\nconst queue = quayside.queue(${JSON.stringify(`${ns}/${queue}`)});\nawait queue.insert({ hello: 'world' });\n\nconst worker = new Worker(queue, async (job) => console.log(job.data));\nworker.start();`}
      />
      <Snippet
        title="Insert and reserve, with Python"
        text={`from quayside import Quayside\n\nclient = Quayside(${JSON.stringify(server)}, auth=(${JSON.stringify(user)}, "…"))\nqueue = client.queue(${JSON.stringify(`${ns}/${queue}`)})\nqueue.insert({"hello": "world"})\n\njob = queue.reserve(wait=30)\nif job is not None:\n    with job:\n        print(job.data)\nclient.close()`}
      />
      <Snippet
        title="Insert, with STOMP"
        text={`SEND\ndestination:${destination}\ncontent-type:application/json\n\n{"hello": "world"}^@`}
      />
      <Snippet
        title="Consume, with STOMP"
        text={`SUBSCRIBE\nid:0\ndestination:${destination}\nack:client-individual\nx-wsize:10\n\n^@`}
      />
    </div>
  );
}
