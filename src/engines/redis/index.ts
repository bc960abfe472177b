import type { OpenEngine } from '../../engine/engine.ts';
import { RedisEngine } from './engine.ts';

export const open: OpenEngine = (options) => new RedisEngine(options);
