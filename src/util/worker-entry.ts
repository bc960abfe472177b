/**
 * The URL of a worker's entry point. The package contains JavaScript; in the source tree, Node runs the TypeScript.
 * @param entry path of the TypeScript file, relative to the module @param module the module's `import.meta.url`
 */
export function workerEntry(entry: string, module: string): URL {
  return new URL(module.endsWith('.ts') ? entry : entry.replace(/\.ts$/, '.js'), module);
}
