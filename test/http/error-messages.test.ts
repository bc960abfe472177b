import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { sharedHarness } from './harness.ts';
import { AUTHORIZATION, closingRequest, exchange, rawRequest } from './raw.ts';

const get = (target: string, ...headers: string[]): Buffer => closingRequest('GET', target, headers);
const put = (...headers: string[]): Buffer => closingRequest('PUT', '/q/N/q', headers, 'body');
const many = (line: string): Buffer =>
  closingRequest('POST', '/q/N/q/elements', ['content-type: application/x-ndjson'], line);
const create = (body: string): Buffer => closingRequest('PUT', '/x/x', [], body);

/** What is wrong, the request, and the complete `detail` of its error. */
const MESSAGES: readonly (readonly [what: string, bytes: Buffer, detail: string | RegExp])[] = [
  [
    'an unknown path',
    get('/queue/N'),
    'Path "/queue/N" does not exist. GET /openapi.json lists those that do.',
  ],
  ['a malformed path', get('/q/N/%zz'), 'Path "/q/N/%zz" is not percent-encoded UTF-8.'],
  [
    'a method',
    closingRequest('PATCH', '/q/N/q'),
    'Method PATCH is not allowed for /q/:namespace/:queue. Allowed: GET, PUT, POST, DELETE.',
  ],
  [
    'a path whose last part is taken for the id of an element',
    get('/q/N/q/staus'),
    'Method GET is not allowed for /q/:namespace/:queue/:id. Allowed: DELETE.',
  ],
  [
    'a method in lower case',
    closingRequest('patch', '/q/N/q/pause'),
    'Method "patch" is not supported. Did you mean "PATCH"?',
  ],
  [
    'an unknown method',
    closingRequest('BREW', '/q/N/q?to=0'),
    'Method "BREW" is not supported. Allowed: GET, PUT, POST, DELETE.',
  ],
  [
    'an unknown method for an unknown path',
    closingRequest('BREW', '/queue'),
    'Method "BREW" is not supported. Allowed: GET, HEAD, PUT, POST, PATCH, DELETE.',
  ],
  [
    'bytes that are not HTTP',
    Buffer.from('HELO \u001b[31mme\r\n\r\n', 'latin1'),
    '"HELO \\u001b[31mme" is not an HTTP request line. Expected: METHOD /path HTTP/1.1.',
  ],
  [
    'a TLS handshake',
    Buffer.from('\u0016\u0003\u0001\u0002\u0000\u0001', 'latin1'),
    /is not an HTTP request line\. .*This looks like TLS, and the port expects plain HTTP\.$/,
  ],
  [
    'a connection of HTTP/2',
    Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'),
    'HTTP/2 is not supported. Allowed: HTTP/1.1 and HTTP/1.0.',
  ],
  [
    'a version of HTTP that does not exist',
    rawRequest(['GET /q HTTP/1.2']),
    'The version of HTTP in the request line is not supported. Allowed: HTTP/1.1 and HTTP/1.0.',
  ],
  [
    'a malformed header name',
    rawRequest(['GET /q HTTP/1.1', 'a b: c']),
    /^The request is not well-formed HTTP: .*header/i,
  ],
  ['an unknown namespace', get('/q/jbos/q?to=0'), 'There is no namespace "jbos".'],
  [
    'a queue name with a control character',
    get('/q/N/a%0Ab/status'),
    'The queue name "a\\nb" contains a control character. Remove it.',
  ],
  [
    'a long tid',
    get(`/q/N/q?tid=${'t'.repeat(300)}`),
    `The tid name "${'t'.repeat(64)}"… is longer than 255 bytes. Shorten it.`,
  ],
  [
    'a misspelled parameter',
    get('/q/N/q?to=0&resrve=1'),
    'Unknown parameter "resrve". Did you mean "reserve"?',
  ],
  [
    'a flag without a value',
    get('/q/N/q?reserve'),
    'reserve has no value; give 1 for yes, or 0, false, no or off for no.',
  ],
  [
    'a number',
    get('/q/N/q?to=5s'),
    'to must be milliseconds, a whole number from 0 to 315360000000, not "5s".',
  ],
  [
    'a maturity in milliseconds',
    closingRequest('PUT', '/q/N/q?mature=1800000000000'),
    'mature must be unix time in seconds; 1800000000000 is past the year 5000, so it may be milliseconds.',
  ],
  [
    'a time to live that is too long',
    closingRequest('PUT', '/q/N/q?ttl=315360001'),
    'ttl must be seconds, a number from 0.001 to 315360000, not 315360001.',
  ],
  [
    'a line with a maturity in milliseconds',
    many('{"text":"a","mature":1800000000000}'),
    'Line 1: mature must be unix time in seconds; 1800000000000 is past the year 5000, so it may be milliseconds.',
  ],
  [
    'a line with a maturity before 1970',
    many('{"text":"a","mature":-1}'),
    'Line 1: mature must be unix time in seconds, a number from 0, not -1.',
  ],
  [
    'a line with a bad header value',
    many('{"text":"a","headers":{"a":"\\u00fc\\u0001"}}'),
    'Line 1: Header "a": "ü\\u0001" is not allowed, a header value has no control character but tab and no white space at its ends.',
  ],
  [
    'a line with a header without a name',
    many('{"text":"a","headers":{"":"x"}}'),
    'Line 1: Header "": a header name is a lower-case HTTP token.',
  ],
  [
    'an element header without a name',
    put('x-ks-hdr-: x'),
    'Header "x-ks-hdr-": no name follows the prefix, a header name is a lower-case HTTP token.',
  ],
  [
    'an element header of a request with many elements',
    closingRequest(
      'POST',
      '/q/N/q/elements',
      ['content-type: application/x-ndjson', 'x-ks-hdr-colour: red'],
      '{"text":"a"}',
    ),
    'Header "x-ks-hdr-colour" of the request belongs to no element. Give each its own: headers in a line, x-ks-hdr-* in a part.',
  ],
  [
    'a line with an empty array of groups',
    many('{"text":"a","groups":[]}'),
    'Line 1: groups must be an array of 1 to 64 names, not an empty array.',
  ],
  [
    'an option that the namespace does not support',
    closingRequest('PUT', '/q/N/q/options', [], '{"retention":5}'),
    'retention cannot be set. Queues of namespace N do not support consumer groups.',
  ],
  [
    'a parameter given twice',
    get('/q/N/q?to=1&to=2'),
    'Parameter to was given more than once, again as "2". Give it once.',
  ],
  ['a pop with a lease', get('/q/N/q?lease=5000'), 'lease=5000 needs reserve=1: a pop has no lease.'],
  [
    'a group of a plain queue',
    get('/q/N/q?group=G1&to=0'),
    'group "G1" cannot be used: namespace N has plain queues. Leave group out, or use a stream namespace.',
  ],
  [
    'a group with a comma',
    get('/q/events/q?group=a,b'),
    '"a,b" is not a valid consumer group name: a name has 1 to 64 characters of well-formed Unicode, no comma, no control character and no space at an end.',
  ],
  [
    'a bad preference',
    get('/q/N/q', 'Prefer: wait=soon'),
    'Prefer: wait="soon" is not allowed. Give whole seconds from 0 to 315360000.',
  ],
  ['an unknown expectation', put('Expect: tea'), 'Expect: "tea" cannot be met. Allowed: 100-continue.'],
  [
    'an unsupported transfer coding',
    rawRequest([
      'PUT /q/N/q HTTP/1.1',
      'Host: a',
      AUTHORIZATION,
      'Connection: close',
      'Transfer-Encoding: gzip, chunked',
    ]),
    'Transfer-Encoding "gzip, chunked" is not supported. Allowed: chunked.',
  ],
  [
    'two content types',
    put('Content-Type: a/b', 'Content-Type: c/d'),
    'Header content-type was sent twice, as "a/b" and as "c/d". Send it once.',
  ],
  [
    'two Authorization headers, without quoting them',
    put(AUTHORIZATION),
    'Header authorization was sent twice. Send it once.',
  ],
  [
    'one element header too many',
    put(...Array.from({ length: 65 }, (_, i) => `x-ks-hdr-h${i}: v`)),
    'Header "x-ks-hdr-h64" is one too many: an element has at most 64 headers.',
  ],
  [
    'a long idempotency key',
    put(`Idempotency-Key: ${'k'.repeat(300)}`),
    `Idempotency-Key "${'k'.repeat(64)}"… has 300 characters. Allowed: 1 to 255.`,
  ],
  [
    'a long content type',
    put(`Content-Type: ${'c'.repeat(300)}`),
    `Header "content-type": "${'c'.repeat(64)}"… has 300 characters, at most 255 are allowed.`,
  ],
  [
    'a cross-site request',
    get('/q', 'Sec-Fetch-Site: cross-site'),
    `Sec-Fetch-Site is "cross-site". A browser may send requests on behalf of this site's own pages only.`,
  ],
  [
    'a prefetch',
    get('/q', 'Sec-Purpose: prefetch;prerender'),
    'Sec-Purpose "prefetch;prerender" is not allowed: a prefetch could take an element.',
  ],
  [
    'a prefetch of an older browser',
    get('/q', 'Purpose: prefetch'),
    'Purpose "prefetch" is not allowed: a prefetch could take an element.',
  ],
  [
    'a long reason',
    closingRequest('POST', `/q/N/q/rollback/x?reason=${'r'.repeat(1_025)}`),
    `reason "${'r'.repeat(64)}"… has 1025 bytes. Allowed: 1 to 1024 bytes of UTF-8.`,
  ],
  [
    'more elements awaited than requested',
    closingRequest('POST', '/q/N/q/take?min=3&count=2'),
    'min=3 is more than count=2. Allowed: up to count.',
  ],
  [
    'an option in both the query and the body',
    closingRequest('POST', '/q/N/q/take?count=2', [], '{"count":3}'),
    'count was given in the query, as 2, and in the body, as 3. Give it once.',
  ],
  [
    'a version that is outdated',
    closingRequest('PUT', '/definitions', ['if-match: "old"'], '{}'),
    'The definitions do not have the version that If-Match names, "\\"old\\"". Read them again, and check the difference.',
  ],
  [
    'a foreign origin',
    get('/q', 'Origin: https://evil.example'),
    `Origin "https://evil.example" is not allowed. Allowed: this server's own, and those of http.allowedOrigins.`,
  ],
  [
    'a body that is too large',
    closingRequest('PUT', '/q/N/q', [], 'x'.repeat(2_001)),
    'The body has 2001 bytes. At most 2000 are allowed.',
  ],
  ['a body that is not JSON', create('{"src":x}'), /^The body is not JSON: ".*x.*"\.$/],
  ['a body that is missing', create(''), 'The body is missing. It must be JSON in UTF-8.'],
  ['an unknown namespace of a query', get('/queues?ns=Z'), 'ns: There is no namespace "Z".'],
  ['an unknown namespace of a history', get('/history?ns=Z'), 'ns: There is no namespace "Z".'],
  ['an unknown namespace of dead letters', get('/dead-letters?ns=Z'), 'ns: There is no namespace "Z".'],
  ['an unknown namespace of events', get('/events?ns=Z'), 'ns: There is no namespace "Z".'],
  [
    'an idempotency key outside ASCII',
    many('{"text":"a","key":"k\\u00fc"}\n{"text":"b","key":"k\\u00fc"}'),
    'Line 2: Key "kü" was used before in queue "q" with other content or parameters. Use a new key for a new element.',
  ],
  [
    'a line that is too long',
    many(`{"text":"${'x'.repeat(70_000)}"}`),
    'Line 1: The line of the element has 70011 bytes or more. At most 69536 are allowed, for a body of up to 2000.',
  ],
  ['a body that is not an object', create('[]'), 'The body must be a JSON object, not an empty array.'],
  [
    'a member of the wrong type',
    create('{"src":{"ns":"N","queue":5},"dst":[{"ns":"N","queue":"b"}],"consumer":{}}'),
    'src.queue must be a string, not 5.',
  ],
  [
    'an unknown namespace of a member',
    create('{"src":{"ns":"Z","queue":"a"},"dst":[{"ns":"N","queue":"b"}],"consumer":{}}'),
    'src.ns: there is no namespace "Z".',
  ],
];

describe('An error message names the offending value and what is allowed', () => {
  const harness = sharedHarness({ http: { bodyLimit: 2_000 } });

  for (const [what, bytes, detail] of MESSAGES) {
    it(`for ${what}`, async () => {
      const [answer] = await exchange(harness().port, bytes);
      const problem = JSON.parse(Buffer.from(answer?.body ?? '{}', 'latin1').toString()) as {
        detail: string;
      };
      if (typeof detail === 'string') assert.equal(problem.detail, detail);
      else assert.match(problem.detail, detail);
    });
  }
});
