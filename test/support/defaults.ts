import { ROOT, withDefaults } from '../../src/config/declared.ts';
import type { Config } from '../../src/config/options.ts';

/** The default configuration, for nodes that tests and benches assemble themselves. */
export const DEFAULTS = withDefaults(ROOT, {}) as Config;
