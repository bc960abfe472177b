import type { User } from '../../access/user.ts';
import { QuaysideError } from '../../model/errors.ts';
import { LIMITS } from '../../model/limits.ts';
import {
  applyChanges,
  Definition,
  Definitions,
  type DefinitionsDocument,
  definitionChanges,
  parseDefinitions,
  presentDefinitions,
  versionOfDefinitions,
} from '../../operations/definitions-document.ts';
import { quote } from '../../util/quote.ts';
import { namedObject, orNull, Type } from '../../util/schema.ts';
import { entityTag, readVersions } from '../head.ts';
import { jsonPieces } from '../listing.ts';
import { flag } from '../parameters.ts';
import { jsonText, notJson } from '../request.ts';
import { json, type Route, route } from '../route.ts';

const Change = Type.Object({
  kind: Type.Enum(['exchange', 'queue']),
  id: Type.Optional(Type.String({ description: 'Of an exchange.' })),
  ns: Type.Optional(Type.String({ description: 'Of a queue.' })),
  queue: Type.Optional(Type.String()),
  before: orNull(Definition),
  after: orNull(Definition),
  outcome: Type.Optional(
    Type.Union([Type.Literal('done'), Type.Object({ code: Type.String(), message: Type.String() })]),
  ),
});

export const definitionRoutes: readonly Route[] = [
  route({
    id: 'definitions',
    path: '/definitions',
    summary: 'Exchanges, pauses and options of queues of all namespaces, as one document',
    access: 'administrator',
    responses: [
      json('Without what the configuration file declares.', Definitions, {
        headers: { etag: 'The version of the document, for `If-Match`.' },
      }),
    ],
    problems: ['storage-unavailable'],
    handle(call) {
      const document = presentDefinitions(call.front.parts);
      call.sendJson(document, ['etag', entityTag(versionOfDefinitions(document))]);
    },
  }),
  route({
    id: 'setDefinitions',
    methods: ['PUT'],
    path: '/definitions',
    summary: 'Apply a document: change what differs from it, or only list the differences',
    access: 'administrator',
    isAudited: true,
    body: 'json',
    request: Definitions,
    query: {
      dryRun: flag(
        'Returns what would change, with the errors of changes that would fail, and changes nothing.',
      ),
      prune: flag(
        'Deletes exchanges, pauses and options that the document does not contain; otherwise they stay.',
      ),
    },
    headers: { 'if-match': 'The change is applied only if the current document has one of these versions.' },
    responses: [
      {
        status: 200,
        description: 'The changes, each with its outcome; if one fails, the others are still applied.',
        contentType: 'application/json',
        schema: namedObject('DefinitionChanges', { applied: Type.Boolean(), changes: Type.Array(Change) }),
      },
    ],
    problems: ['invalid-name', 'namespace-not-found', 'precondition-failed', 'storage-unavailable'],
    handle(call, { dryRun, prune }) {
      const { limits, parts } = call.front;
      const read = (body: Buffer): Promise<DefinitionsDocument> =>
        parseDefinitions(jsonText(body), parts.broker).catch((error: unknown) => {
          throw notJson(error);
        });
      return limits.useLargeBody(call, LIMITS.maxBodyLimit, read, async (wanted) => {
        const present = presentDefinitions(parts);
        const versions = readVersions(call.head);
        if (versions !== null && !versions.has(versionOfDefinitions(present))) {
          throw new QuaysideError(
            'precondition-failed',
            `The definitions do not have the version that If-Match names, ${quote(call.head.ifMatch)}. Read them again, and check the difference.`,
          );
        }
        const changes = definitionChanges(present, wanted, prune);
        call.auditFields = { dryRun, changes: changes.length };
        const callerNow = (): User => {
          call.renewUser();
          return call.user;
        };
        const outcomes = await applyChanges(changes, parts, callerNow, dryRun);
        const start = `{"applied":${!dryRun},"changes":[`;
        const listed = changes.map((change, i) => ({ ...change, outcome: outcomes[i] }));
        await call.sendPieces(jsonPieces(start, listed, (change) => JSON.stringify(change), ']}'));
      });
    },
  }),
];
