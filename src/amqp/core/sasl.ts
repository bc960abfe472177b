import type { Authenticator, User } from '../../access/user.ts';
import { QuaysideError } from '../../model/errors.ts';
import {
  authenticate,
  type ClientCertificate,
  type Credentials,
  loginCertified,
} from '../../session/login.ts';
import { quoteBytes, toByteString } from '../../util/byte-string.ts';
import { quote } from '../../util/quote.ts';
import { AMQP_CONDITIONS } from '../errors.ts';
import { CODE, descriptorNumber, SASL } from './codes.ts';
import { FieldReader } from './fields.ts';
import { bodyStart, FRAME_TYPE, frame, writer } from './frames.ts';
import { decodeError, hex, ProtocolError, unauthorized } from './protocol-error.ts';

/** Codes of `sasl-outcome` (security, 5.3.3.6). */
const SASL_CODE = {
  ok: 0,
  /** The credentials are wrong. */
  auth: 1,
  /** The client sent something invalid. */
  sys: 2,
  /** The login may succeed later. */
  sysTemp: 4,
} as const;

const PLAIN = 'PLAIN';
/** RFC 4505. */
const ANONYMOUS = 'ANONYMOUS';
/** RFC 4422, appendix A. */
const EXTERNAL = 'EXTERNAL';
const CREDENTIALS_NEEDED = 'SASL PLAIN needs the name and password of a user.';

/** Requests the response if `sasl-init` has no initial response (security, 5.3.3.3). */
const CHALLENGE = frame(FRAME_TYPE.sasl, 0, SASL.challenge, () => {
  writer.head(CODE.binary8, 0);
});

/** The server's side of one SASL exchange, from after its protocol header to its outcome. */
export class SaslLogin {
  readonly #authenticator: Authenticator;
  readonly #anonymousUser: string | null;
  readonly #client: { readonly address: string; readonly certificate: ClientCertificate };
  readonly #send: (frame: Buffer) => void;
  /** The mechanism whose response was requested; null before a challenge. */
  #challengedMechanism: string | null = null;

  /**
   * @param anonymousUser the user of clients with ANONYMOUS; null: that mechanism is not offered
   * @param client EXTERNAL is offered if the client's certificate is accepted
   */
  constructor(
    authenticator: Authenticator,
    anonymousUser: string | null,
    client: { readonly address: string; readonly certificate: ClientCertificate },
    send: (frame: Buffer) => void,
  ) {
    this.#authenticator = authenticator;
    this.#anonymousUser = anonymousUser;
    this.#client = client;
    this.#send = send;
  }

  /** Offers the mechanisms. */
  offer(): void {
    const offer = frame(FRAME_TYPE.sasl, 0, SASL.mechanisms, () => {
      // Always an array: RabbitMQ's Erlang client and its Shovel do not accept a single symbol, which the standard
      // allows.
      writer.symbols(this.#mechanisms);
    });
    this.#send(offer);
  }

  get #mechanisms(): string[] {
    // The preferred one first: some clients choose the first.
    return [
      ...(this.#client.certificate.name === null ? [] : [EXTERNAL]),
      PLAIN,
      ...(this.#anonymousUser === null ? [] : [ANONYMOUS]),
    ];
  }

  /**
   * Executes a whole frame. Returns null if another frame must follow, else the check of the login.
   * @throws ProtocolError; the promise rejects with it, too
   */
  take(bytes: Buffer, start: number, end: number): Promise<User> | null {
    const { mechanism, response } = this.#read(bytes, start, end);
    if (mechanism === ANONYMOUS) return Promise.resolve(this.#anonymous());
    if (response === null) {
      if (this.#challengedMechanism !== null) throw unauthorized(CREDENTIALS_NEEDED);
      this.#challengedMechanism = mechanism;
      this.#send(CHALLENGE);
      return null;
    }
    if (mechanism === EXTERNAL) return Promise.resolve(this.#external(response));
    const credentials = readPlain(response);
    if (credentials === null) throw unauthorized(CREDENTIALS_NEEDED);
    return authenticate(this.#authenticator, credentials, this.#client.address, CREDENTIALS_NEEDED).catch(
      reject,
    );
  }

  /** Sends the outcome. @param condition that of the error with which the connection ends; null: the login succeeded */
  end(condition: string | null): void {
    const outcome = frame(FRAME_TYPE.sasl, 0, SASL.outcome, () => {
      writer.ubyte(codeOf(condition));
    });
    this.#send(outcome);
  }

  #anonymous(): User {
    const name = this.#anonymousUser ?? '';
    const user = this.#authenticator.loginWithoutPassword(name, this.#client.address);
    if (user === null) throw unauthorized(`There is no user ${quoteBytes(name)} for SASL ANONYMOUS.`);
    return user;
  }

  /** @param response the user that the client wants to act as; empty: the user whom its certificate names */
  #external(response: Buffer): User {
    const { address, certificate } = this.#client;
    try {
      return loginCertified(
        this.#authenticator,
        checkActingAs(certificate, response.toString('latin1')),
        address,
      );
    } catch (error) {
      return reject(error);
    }
  }

  /** Reads a `sasl-init`, or a `sasl-response` after a challenge. A missing response is null. */
  #read(bytes: Buffer, start: number, end: number): { mechanism: string; response: Buffer | null } {
    const fields = new FieldReader();
    const type = descriptorNumber(fields.enter(bytes, bodyStart(bytes, start, end, FRAME_TYPE.sasl), end));
    const isChallenged = this.#challengedMechanism !== null;
    if (type !== (isChallenged ? SASL.response : SASL.init)) {
      throw decodeError(
        `The SASL frame ${hex(type)} was sent. Expected: ${isChallenged ? 'sasl-response' : 'sasl-init'}.`,
      );
    }
    const mechanism = this.#challengedMechanism ?? fields.symbol('mechanism');
    const response = fields.binary(isChallenged ? 'response' : 'initial-response');
    if (!isChallenged) fields.string('hostname');
    fields.finish();
    if (mechanism !== null && this.#mechanisms.includes(mechanism)) return { mechanism, response };
    // Throws the reason why the certificate is not accepted.
    if (mechanism === EXTERNAL) this.#external(Buffer.alloc(0));
    const allowed = this.#mechanisms.join(', ');
    throw unauthorized(
      `SASL mechanism ${quoteBytes(mechanism ?? '')} is not supported. Allowed: ${allowed}.`,
    );
  }
}

/** Rejects the certificate if the client wants to act as a user other than the one whom it names. */
function checkActingAs(certificate: ClientCertificate, authorizedAs: string): ClientCertificate {
  const { name } = certificate;
  if (name === null || authorizedAs === '' || authorizedAs === toByteString(name)) return certificate;
  const error = `the client's certificate names ${quote(name)}, who may not act as ${quoteBytes(authorizedAs)}`;
  return { name: null, error, isSent: true };
}

/**
 * The credentials of a PLAIN response (RFC 4616); null if it is not valid, or the client wants to act as another user.
 */
function readPlain(response: Buffer): Credentials | null {
  const parts = response.toString('latin1').split('\0');
  const [authorizedAs, login, passcode] = parts;
  if (parts.length !== 3 || login === undefined || passcode === undefined) return null;
  if (authorizedAs !== '' && authorizedAs !== login) return null;
  return { login, passcode };
}

function codeOf(condition: string | null): number {
  switch (condition) {
    case null:
      return SASL_CODE.ok;
    case 'amqp:unauthorized-access':
      return SASL_CODE.auth;
    case 'amqp:decode-error':
    case 'amqp:connection:framing-error':
      return SASL_CODE.sys;
    default:
      return SASL_CODE.sysTemp;
  }
}

function reject(error: unknown): never {
  if (!(error instanceof QuaysideError)) throw error;
  throw new ProtocolError(AMQP_CONDITIONS[error.code], error.message);
}
