import { parentPort, workerData } from 'node:worker_threads';
import { readYaml } from './yaml.ts';

// A thread that reads one YAML text.

parentPort?.postMessage(readYaml(workerData as string));
