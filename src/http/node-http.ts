/**
 * What the front end uses of `node:http`. An `import` of it reads all of its exports, one of which loads a WebSocket
 * client: 37 ms of processor time at each start, a fifteenth of it.
 */
export const { createServer, IncomingMessage, ServerResponse, STATUS_CODES } =
  process.getBuiltinModule('node:http');
