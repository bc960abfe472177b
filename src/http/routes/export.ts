import { checkBodies } from '../../access/user.ts';
import { QuaysideError } from '../../model/errors.ts';
import { Imported } from '../../model/records.ts';
import { exportPages, QueueImport } from '../../operations/transfer.ts';
import type { HttpCall } from '../call.ts';
import { group } from '../parameters.ts';
import { json, type Route, route } from '../route.ts';
import { ExportLine, errorIn, incomingLines, readExportedLine } from '../sent-elements.ts';
import { exportedLine, NDJSON } from '../written-elements.ts';

export const exportRoutes: readonly Route[] = [
  route({
    id: 'exportQueue',
    methods: ['GET'],
    path: '/q/:namespace/:queue/export',
    summary: 'Export all elements of a queue with their state, as lines of JSON; nothing changes',
    access: 'browse',
    isAudited: true,
    query: {
      group: group('On a stream: only the deliveries of this group; defaults to those of all groups.'),
    },
    responses: [{ status: 200, description: 'One line each.', contentType: NDJSON, schema: ExportLine }],
    problems: ['not-supported', 'overloaded'],
    handle(call, { group }) {
      checkBodies(call.user, call.namespace.name);
      return call.front.limits.exports.run(call.user.name, () =>
        call.sendStream(NDJSON, exportLines(call, group)),
      );
    },
  }),
  route({
    id: 'importQueue',
    methods: ['POST'],
    path: '/q/:namespace/:queue/import',
    summary: 'Import the elements of an export, each once',
    access: 'write',
    createsQueue: true,
    body: 'elements',
    request: ExportLine,
    isAudited: true,
    responses: [json('All lines were read.', Imported)],
    problems: [
      'request-timeout',
      'too-many-groups',
      'namespace-full',
      'queue-full',
      'storage-full',
      'not-supported',
      'overloaded',
    ],
    handle: (call) => call.front.limits.exports.run(call.user.name, () => importLines(call)),
  }),
];

async function* exportLines(call: HttpCall, group: string | null): AsyncGenerator<string> {
  const { queue } = call;
  const { isStream } = queue.namespace;
  for await (const page of exportPages(queue, group, call.user.name)) {
    call.renewUser();
    checkBodies(call.user, call.namespace.name);
    let lines = '';
    for (const delivery of page) lines += exportedLine(delivery, isStream);
    yield lines;
  }
}

/**
 * Imports the lines of a body. If one is wrong, those before it stay stored: the error has the number of the line, and
 * a repetition skips them. Therefore a failed import is audited as well.
 */
async function importLines(call: HttpCall): Promise<void> {
  const { bodyLimit } = call.front.parts.options;
  const queueImport = new QueueImport(call.queue, call.user.name);
  try {
    for await (const { number, line } of incomingLines(call)) {
      call.renewUser();
      try {
        await queueImport.add(await readExportedLine(line, bodyLimit));
      } catch (error) {
        throw errorIn('line', number, error);
      }
    }
    if (call.request.complete) await queueImport.flush();
    call.auditFields = progressOf(queueImport);
    if (!call.isGone) call.sendJson(call.auditFields);
  } catch (error) {
    call.auditFields = progressOf(queueImport);
    const isPublic = error instanceof QuaysideError;
    call.fail(isPublic ? error.with({ extra: { ...error.details.extra, ...call.auditFields } }) : error);
  }
}

function progressOf({ imported, repeated }: QueueImport): Imported {
  return { imported, repeated };
}
