import { readFile } from 'node:fs/promises';

// The types of WebAssembly come with a browser's library, which a server has no use for otherwise.
const { compile } = (
  globalThis as unknown as { WebAssembly: { compile(bytes: Uint8Array): Promise<WasmModule> } }
).WebAssembly;

/** A compiled WebAssembly module: opaque, and shared between threads rather than copied. */
export type WasmModule = object;

let loading: Promise<WasmModule> | null = null;

/** The VM's code, read and compiled (off the main thread) once per process, at its first use. */
export function loadWasm(): Promise<WasmModule> {
  loading ??= readFile(new URL(import.meta.resolve('quickjs-wasi/quickjs.wasm'))).then(compile);
  return loading;
}
