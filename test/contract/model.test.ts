import { describe } from 'node:test';
import { ENGINES } from '../engines.ts';
import { storageModel } from './storage-model.ts';

// At the same time, since each waits for its own thread or server most of the time.
describe('Storage models', { concurrency: true }, () => {
  for (const engine of ENGINES) storageModel(engine.name, engine);
});
