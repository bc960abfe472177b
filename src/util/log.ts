/** What front ends log for operators. Fields never hold a body, a password or an element header. */
export interface FrontEndLog {
  debug(fields: object, message: string): void;
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}

/** A log that can be asked before fields are made that cost time. */
export interface LeveledLog extends FrontEndLog {
  isLevelEnabled(level: 'debug'): boolean;
}
