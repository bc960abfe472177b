import fc from 'fast-check';
import type { StompVersion } from '../stomp/client.ts';
import type { Mutation } from './mutations.ts';

/** The bytes of a client: its login, then its frames. */
export interface Recorded {
  readonly version: StompVersion;
  readonly login: Buffer;
  readonly frames: readonly Buffer[];
}

type Lines = readonly [name: string, value: string | number][];

function frame(command: string, lines: Lines, body: string | Buffer = ''): Buffer {
  const head = `${command}\n${lines.map(([name, value]) => `${name}:${value}\n`).join('')}\n`;
  return Buffer.concat([Buffer.from(head), Buffer.from(body), Buffer.from('\0\n')]);
}

function login(version: StompVersion): Buffer {
  const accepts: Lines = version === '1.0' ? [] : [['accept-version', version], ['host', 'here']]; // biome-ignore format: one line
  return frame('CONNECT', [...accepts, ['login', 'test'], ['passcode', 'test'], ['heart-beat', '1000,1000']]);
}

const BYTES = Buffer.from(Array.from({ length: 300 }, (_, i) => i & 255));
const TO = '/q/N/fuzz';

const SENDS: readonly Buffer[] = [
  frame(
    'SEND',
    [
      ['destination', TO],
      ['content-type', 'text/plain'],
      ['receipt', 'r1'],
    ],
    'text',
  ),
  frame(
    'SEND',
    [
      ['destination', TO],
      ['content-length', BYTES.length],
      ['x-ks-hdr-colour', 'blue'],
    ],
    BYTES,
  ),
  frame(
    'SEND',
    [
      ['destination', '/queue/S/fuzz'],
      ['x-ks-groups', 'G1,G2'],
      ['x-delta-t', 5],
    ],
    'to groups',
  ),
  frame('SEND', [
    ['destination', TO],
    ['x-next-t', 1_900_000_000_000],
    ['x-tries', 3],
  ]),
];

const TRANSACTION: readonly Buffer[] = [
  frame('BEGIN', [['transaction', 't']]),
  frame(
    'SEND',
    [
      ['destination', TO],
      ['transaction', 't'],
    ],
    'in it',
  ),
  frame('COMMIT', [
    ['transaction', 't'],
    ['receipt', 'r2'],
  ]),
  frame('BEGIN', [['transaction', 'u']]),
  frame('ABORT', [['transaction', 'u']]),
];

const END = frame('DISCONNECT', [['receipt', 'last']]);

/** A session per version; together they contain every command at least once. */
export const RECORDED: readonly Recorded[] = [
  {
    version: '1.2',
    login: login('1.2'),
    frames: [
      ...SENDS,
      frame('SUBSCRIBE', [
        ['destination', TO],
        ['id', 's'],
        ['ack', 'client-individual'],
        ['x-wsize', 4],
      ]),
      frame('ACK', [['id', '1-1']]),
      frame('NACK', [
        ['id', '1-2'],
        ['x-delta-t', 0],
      ]),
      ...TRANSACTION,
      frame(
        'SEND',
        [
          ['destination', TO],
          ['esc\\cape', 'a\\nb\\\\c\\rd'],
        ],
        'escapes',
      ),
      frame('UNSUBSCRIBE', [['id', 's']]),
      END,
    ],
  },
  {
    version: '1.1',
    login: login('1.1'),
    frames: [
      frame('SUBSCRIBE', [
        ['destination', TO],
        ['id', 's'],
        ['prefetch-count', 2],
      ]),
      ...SENDS,
      ...TRANSACTION,
      frame('UNSUBSCRIBE', [['id', 's']]),
      frame('SUBSCRIBE', [
        ['destination', '/q/S/fuzz'],
        ['id', 't'],
        ['ack', 'client'],
        ['x-ks-group', 'G2'],
      ]),
      END,
    ],
  },
  {
    version: '1.0',
    login: login('1.0'),
    frames: [
      frame('SUBSCRIBE', [
        ['destination', TO],
        ['ack', 'auto'],
      ]),
      ...SENDS,
      frame('UNSUBSCRIBE', [['destination', TO]]),
      ...TRANSACTION,
      END,
    ],
  },
];

/** Numbers that are wrong or too large as a length, window or delay. */
const NUMBERS = [
  0,
  -1,
  1,
  2 ** 31,
  2 ** 31 - 1,
  2 ** 32,
  2 ** 53,
  1e21,
  'NaN',
  '0x10',
  '00',
  '',
  ' 1',
  '1e3',
];

/** Replaces the number in some numeric header. */
export const otherNumber: fc.Arbitrary<Mutation> = fc
  .tuple(fc.nat(30), fc.constantFrom(...NUMBERS))
  .map(([which, number]) => ({
    apply(bytes) {
      let seen = 0;
      const text = bytes.toString('latin1').replace(/(?<=:)\d+(?=\n)/g, (found) => {
        seen += 1;
        return seen - 1 === which ? String(number) : found;
      });
      return Buffer.from(text, 'latin1');
    },
    toString: () => `number(${which}, ${JSON.stringify(number)})`,
  }));

/** Adds a header that is duplicate, misplaced or malformed. */
export const otherHeader: fc.Arbitrary<Mutation> = fc
  .tuple(
    fc.nat(20),
    fc.constantFrom(
      'content-length:4',
      'content-length:2147483648',
      'receipt:again',
      'transaction:t',
      'transaction:none',
      'ack:client',
      'selector:a = 1',
      'id:1-1',
      'x-ks-group:G9',
      'destination:/q/nowhere/a',
      'destination:/q/N/%00',
      'a:\\t',
      ':',
      'no colon',
    ),
  )
  .map(([which, line]) => ({
    apply(bytes) {
      const heads = bytes.toString('latin1').split('\n\n');
      const index = which % heads.length;
      heads[index] += `\n${line}`;
      return Buffer.from(heads.join('\n\n'), 'latin1');
    },
    toString: () => `header(${which}, ${JSON.stringify(line)})`,
  }));
