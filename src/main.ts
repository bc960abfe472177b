#!/usr/bin/env -S node --max-semi-space-size=8 --no-allocation-site-pretenuring
import { main } from './program.ts';

/** The entry point, and the only file that may end the process. */
process.exit(await main(process.argv.slice(2), process));
