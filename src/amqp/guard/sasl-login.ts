import type { Authenticator, User } from '../../access/user.ts';
import { QuaysideError } from '../../model/errors.ts';
import { authenticate } from '../../session/login.ts';
import { quoteBytes } from '../../util/quote.ts';
import { Breach } from './refusal.ts';
import { CHALLENGE, readPlain, readSasl } from './sasl.ts';

const NEED = 'SASL PLAIN needs the name and password of a user.';

/** The server's side of one SASL exchange, from behind its protocol header to the check of a password. */
export class SaslLogin {
  readonly #authenticator: Authenticator;
  readonly #address: string;
  readonly #send: (frame: Buffer) => void;
  #isChallenged = false;

  constructor(authenticator: Authenticator, address: string, send: (frame: Buffer) => void) {
    this.#authenticator = authenticator;
    this.#address = address;
    this.#send = send;
  }

  /**
   * Takes a client's whole frame. Answers null where another one is due, else the user, who may take a while.
   * @throws Breach, and so does the promise
   */
  take(bytes: Buffer, start: number, end: number): Promise<User> | null {
    const said = readSasl(bytes, start, end, this.#isChallenged);
    if (said.kind === 'other-mechanism')
      throw unauthorised(`SASL mechanism ${quoteBytes(said.mechanism)} is not served. Allowed: PLAIN.`);
    if (said.kind === 'no-response') {
      if (this.#isChallenged) throw unauthorised(NEED);
      this.#isChallenged = true;
      this.#send(CHALLENGE);
      return null;
    }
    const credentials = readPlain(said.response);
    if (credentials === null) throw unauthorised(NEED);
    return authenticate(this.#authenticator, credentials, this.#address, NEED).catch(refuse);
  }
}

function refuse(error: unknown): never {
  if (!(error instanceof QuaysideError)) throw error;
  if (error.code === 'unauthorized') throw unauthorised(error.message);
  throw new Breach('amqp:resource-limit-exceeded', error.message);
}

function unauthorised(description: string): Breach {
  return new Breach('amqp:unauthorized-access', description);
}
