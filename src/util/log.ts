/** The log of front ends, for operators. Fields never contain a body, a password or an element header. */
export interface FrontEndLog {
  debug(fields: object, message: string): void;
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}

/** A log whose level can be checked before expensive fields are computed. */
export interface LeveledLog extends FrontEndLog {
  isLevelEnabled(level: 'debug'): boolean;
}
