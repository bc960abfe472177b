import { describe } from 'node:test';
import { ENGINES } from '../engines.ts';
import { storageModel } from './storage-model.ts';

// Concurrently: each model mostly waits for its thread or server.
describe('Storage models', { concurrency: true }, () => {
  for (const engine of ENGINES) storageModel(engine.name, engine);
});
