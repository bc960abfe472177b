/** The log of events that are no part of a reply. Fields never contain a body, a password or an element header. */
export interface EventLog {
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
}

/** The log of front ends, for operators. */
export interface FrontEndLog extends EventLog {
  debug(fields: object, message: string): void;
  error(fields: object, message: string): void;
}

/** A log whose level can be checked before expensive fields are computed. */
export interface LeveledLog extends FrontEndLog {
  isLevelEnabled(level: 'debug'): boolean;
}
