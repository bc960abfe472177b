import { ENGINES } from '../engines.ts';
import { definitionsContract } from './definitions.ts';
import { signallerContract } from './signaller.ts';
import { statsContract } from './stats.ts';
import { storageContract } from './storage.ts';

for (const { name, open } of ENGINES) {
  storageContract(name, open);
  definitionsContract(name, open);
  signallerContract(name, open);
  statsContract(name, open);
}
