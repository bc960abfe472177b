import { ENGINES } from '../engines.ts';
import { definitionsContract } from './definitions.ts';
import { signallerContract } from './signaller.ts';
import { statsContract } from './stats.ts';
import { storageContract } from './storage.ts';

for (const engine of ENGINES) {
  const { name, open } = engine;
  storageContract(engine);
  definitionsContract(name, open);
  signallerContract(name, open);
  statsContract(name, open);
}
