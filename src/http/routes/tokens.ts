import type { NewToken, TokenPlace, TokenRecord } from '../../access/api-tokens.ts';
import { checkRight } from '../../access/user.ts';
import { namespaceNotFound, QuaysideError } from '../../model/errors.ts';
import { atMember, memberPath, parse, wrongMember } from '../../model/members.ts';
import { IssuedToken, ListedToken, STRICT, TOKEN_RIGHTS_NOTE } from '../../model/records.ts';
import { RIGHTS, type Right } from '../../model/rights.ts';
import { quote } from '../../util/quote.ts';
import { allowing, Moment, namedObject, orNull, refined, Type } from '../../util/schema.ts';
import type { HttpCall } from '../call.ts';
import { jsonPieces, NEXT_LINK, pageOf, paging } from '../listing.ts';
import { readJson } from '../request.ts';
import { empty, json, type Route, route } from '../route.ts';
import { isoTime } from '../written-elements.ts';

const MAX_BYTES = 65_536;
const MAX_NAME = 64;
const EVERY_NAMESPACE = '*';
const ISO_TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:\d\d)$/;

const EXPIRY = 'null, or a time to come such as 2030-01-31T00:00:00Z';

const TokenRequest = namedObject(
  'TokenRequest',
  {
    name: refined(Type.String({ minLength: 1, maxLength: MAX_NAME }), {
      allowed: `a string of 1 to ${MAX_NAME} visible characters`,
      fits: (name) => /^[^\p{C}]{1,64}$/u.test(name),
    }),
    rights: Type.Optional(
      allowing(
        'null, or lists of rights by namespace',
        orNull(
          Type.Record(allowing('a list of rights', Type.Array(Type.Enum(RIGHTS), { minItems: 1 })), {
            minProperties: 1,
            description: TOKEN_RIGHTS_NOTE,
          }),
        ),
      ),
    ),
    expiresAt: Type.Optional(allowing(EXPIRY, orNull(refined(Moment, { fits: isMoment })))),
  },
  STRICT,
);

/** API tokens, which never have more rights than the user who creates them. */
export const tokenRoutes: readonly Route[] = [
  route({
    id: 'createToken',
    methods: ['POST'],
    path: '/tokens',
    summary: 'Create an API token with all or some of the rights of the user',
    access: 'user',
    isAudited: true,
    body: 'json',
    request: TokenRequest,
    responses: [json('The token, which is not shown again.', IssuedToken, { status: 201 })],
    problems: [
      'forbidden',
      'namespace-not-found',
      'too-many-tokens',
      'storage-unavailable',
      'outcome-unknown',
    ],
    handle: (call) =>
      readJson(call, MAX_BYTES, async (payload) => {
        checkNoToken(call);
        const { record, secret } = await call.front.parts.tokens.create(call.user, parseToken(call, payload));
        call.auditFields = { id: record.id };
        const issued: IssuedToken = { ...tokenRecord(record), token: secret };
        call.sendText(201, JSON.stringify(issued));
      }),
  }),
  route({
    id: 'listTokens',
    path: '/tokens',
    summary: 'List the API tokens of the user; as an administrator, those of all users',
    access: 'user',
    query: paging('Continues behind the token of this place, which is of the form `CREATED.ID`.'),
    responses: [json('The oldest first.', Type.Array(ListedToken), { headers: NEXT_LINK })],
    problems: ['forbidden', 'invalid-parameter'],
    handle(call, query) {
      checkNoToken(call);
      const after = query.after === null ? null : parsePlace(query.after);
      return call.front.limits.listInTurn(call, async () => {
        const remaining = call.front.parts.tokens.list(call.user, after);
        const { items, headers } = pageOf(remaining, query, placeText);
        await call.sendPieces(
          jsonPieces('[', items, (token) => JSON.stringify(tokenRecord(token)), ']'),
          headers,
        );
      });
    },
  }),
  route({
    id: 'revokeToken',
    methods: ['DELETE'],
    path: '/tokens/:id',
    summary: 'Revoke an API token of the user; as an administrator, one of any user',
    access: 'user',
    isAudited: true,
    responses: [empty(204, 'It is rejected from now on.')],
    problems: ['forbidden', 'token-not-found', 'storage-unavailable', 'outcome-unknown'],
    async handle(call) {
      checkNoToken(call);
      await call.front.parts.tokens.revoke(call.param('id'), call.user);
      call.sendEmpty(204);
    },
  }),
];

/**
 * A leaked token must not create tokens, which would outlive its revocation, or end sessions of its owner.
 * @throws QuaysideError `forbidden`
 */
export function checkNoToken({ user: { token } }: HttpCall): void {
  if (token === undefined) return;
  throw new QuaysideError(
    'forbidden',
    `Token ${quote(token.name)} cannot manage tokens or sessions of the console. Use the password of the user.`,
  );
}

/** The position of a token in the list, which remains valid after the token was deleted. */
function placeText({ createdAt, id }: TokenPlace): string {
  return `${createdAt}.${id}`;
}

function parsePlace(text: string): TokenPlace {
  const [, createdAt, id] = /^(\d{1,15})\.([0-9a-f]{1,64})$/.exec(text) ?? [];
  if (createdAt !== undefined && id !== undefined) return { createdAt: Number(createdAt), id };
  throw wrongMember('after', text, 'that of the link of the page before');
}

function parseToken(call: HttpCall, payload: unknown): NewToken {
  const { name, rights = null, expiresAt = null } = parse(TokenRequest, payload);
  for (const [namespace, granted] of Object.entries(rights ?? {})) {
    atMember(memberPath('rights', namespace), () => {
      for (const right of granted) checkGrant(call, right, namespace);
    });
  }
  const at = expiresAt === null ? null : Date.parse(expiresAt);
  if (at !== null && at <= call.front.parts.clock.now()) throw wrongMember('expiresAt', expiresAt, EXPIRY);
  return { name, rights, expiresAt: at };
}

/** Whether a string is an existing moment in ISO 8601. `Date.parse` would read 31 February as 3 March. */
function isMoment(text: string): boolean {
  if (!ISO_TIME.test(text) || Number.isNaN(Date.parse(text))) return false;
  const day = text.slice(0, 10);
  const midnight = Date.parse(`${day}T00:00:00Z`);
  return !Number.isNaN(midnight) && new Date(midnight).toISOString().startsWith(day);
}

function checkGrant({ user, front }: HttpCall, right: Right, namespace: string): void {
  const namespaces = front.parts.broker.namespaces();
  if (namespace === EVERY_NAMESPACE) {
    if (namespaces.some(({ name }) => user.may(right, name))) return;
    throw new QuaysideError('forbidden', `User ${quote(user.name)} has the right ${right} in no namespace.`);
  }
  if (!namespaces.some(({ name }) => name === namespace)) throw namespaceNotFound(namespace);
  checkRight(user, right, namespace);
}

function tokenRecord({ createdAt, expiresAt, lastUsedAt, ...token }: TokenRecord): ListedToken {
  const time = (at: number | null): string | null => (at === null ? null : isoTime(at));
  return {
    ...token,
    createdAt: isoTime(createdAt),
    expiresAt: time(expiresAt),
    lastUsedAt: time(lastUsedAt),
  };
}
