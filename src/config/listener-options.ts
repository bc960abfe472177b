import Type, { type TProperties } from 'typebox';

/** Keys that are not declared are errors. */
export const CLOSED = { additionalProperties: false };

/** A certificate for a listener. */
export const tlsOptions = (description: string) =>
  Type.Optional(
    Type.Object(
      {
        cert: Type.String({ minLength: 1, description: 'PEM file of the certificate chain' }),
        key: Type.String({ minLength: 1, description: 'PEM file of its private key' }),
      },
      { ...CLOSED, description: `${description}; both files are read again on SIGHUP` },
    ),
  );

const hostOption = (description: string) => Type.String({ minLength: 1, default: '127.0.0.1', description });

/** Where a listener is bound, and what protects it. */
export const HOST = hostOption('address or name to listen on');
export const HOST_OR_SOCKET = hostOption(
  'address or name to listen on, or the absolute path of a Unix socket, which gets mode `0660`',
);

export const INSECURE = Type.Boolean({
  default: false,
  description: 'allows listening beyond this machine without TLS: passwords then travel in the clear',
});

/** A front end besides HTTP: off unless it is given a port. Its users are those of `http.users`. */
const frontEndOptions = <More extends TProperties>(
  name: string,
  customaryPort: number,
  tooLarge: string,
  more: More,
) =>
  Type.Object(
    {
      host: HOST,
      port: Type.Optional(
        Type.Integer({
          minimum: 0,
          maximum: 65_535,
          description: `port, ${customaryPort} by custom; 0 takes a free one; without it ${name} is off`,
        }),
      ),
      bodyLimit: Type.Integer({
        minimum: 1,
        maximum: 1_073_741_824,
        default: 1_048_576,
        description: tooLarge,
      }),
      maxSockets: Type.Integer({
        minimum: 1,
        default: 10_000,
        description: 'connections kept at once; further ones are closed',
      }),
      tls: tlsOptions(`serves ${name} over TLS (1.2 and up)`),
      insecure: INSECURE,
      trustedProxies: Type.Array(Type.String(), {
        default: [],
        description:
          'proxies that send a PROXY protocol header (version 2), which says where a client connects from: addresses or networks (`10.0.0.0/8`); their connections without one are closed',
      }),
      ...more,
    },
    { ...CLOSED, default: {} },
  );

export const StompOptions = frontEndOptions(
  'STOMP',
  61613,
  'largest body of a SEND, bytes; larger ones end the session with an ERROR',
  {
    trailingNewline: Type.Boolean({
      default: true,
      description:
        'sends one LF after each frame, which some clients wait for, such as the stomp extension of PHP',
    }),
  },
);

export const AmqpOptions = frontEndOptions(
  'AMQP 1.0',
  5672,
  'largest body of a message, bytes; larger ones are rejected',
  {},
);
