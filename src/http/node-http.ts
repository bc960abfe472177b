/**
 * What the front end uses of `node:http`. An `import` would read all of its exports, one of which loads a WebSocket
 * client: 37 ms of processor time, a fifteenth of each start.
 */
export const { createServer, IncomingMessage, ServerResponse, STATUS_CODES } =
  process.getBuiltinModule('node:http');
