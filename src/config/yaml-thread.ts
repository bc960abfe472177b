import { parentPort, workerData } from 'node:worker_threads';
import { readYaml } from './yaml.ts';

// Entry of a worker thread that parses one YAML text.

parentPort?.postMessage(readYaml(workerData as string));
