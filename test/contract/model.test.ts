import { ENGINES } from '../engines.ts';
import { storageModel } from './storage-model.ts';

for (const engine of ENGINES) storageModel(engine.name, engine);
