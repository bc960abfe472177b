/** A certificate chain and its key, as PEM text. */
export interface TlsMaterial {
  readonly cert: string;
  readonly key: string;
}

/** Where a front end says what no client hears. Fields never hold a body, a password or a header. */
export interface FrontEndLog {
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}
