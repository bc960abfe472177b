import { CONTRACT_ENGINES, ENGINES } from '../engines.ts';
import { definitionsContract } from './definitions.ts';
import { signallerContract } from './signaller.ts';
import { statsContract } from './stats.ts';
import { storageContract } from './storage.ts';

for (const engine of CONTRACT_ENGINES) storageContract(engine);

for (const { name, open } of ENGINES) {
  definitionsContract(name, open);
  signallerContract(name, open);
  statsContract(name, open);
}
