/** Imports the modules that most processes of `npm test` load. `run-servers.ts` runs it to fill the compile cache. */
import '../amqp/node.ts';
import '../engines.ts';
import '../http/harness.ts';
import '../stomp/node.ts';
import '../system/program.ts';
import './server-in-process.ts';
import './server-process.ts';
