import { ROOT, withDefaults } from '../../src/config/load.ts';
import type { Config } from '../../src/config/options.ts';

/** The configuration where nothing is given, for nodes that tests and benches put together by hand. */
export const DEFAULTS = withDefaults(ROOT, {}) as Config;
