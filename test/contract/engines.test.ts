import { ENGINES } from '../engines.ts';
import { storageContract } from './storage.ts';

for (const { name, open } of ENGINES) storageContract(name, open);
