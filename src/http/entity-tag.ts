/** A version as `ETag` has it. */
export function entityTag(version: string): string {
  return `"${version}"`;
}

/** The versions that `If-Match` names, in quotes or without; null: any. Weak ones match nothing. */
export function readVersions(ifMatch: string): ReadonlySet<string> | null {
  if (ifMatch.trim() === '*') return null;
  return new Set(ifMatch.split(',').map((tag) => tag.trim().replace(/^"(.*)"$/, '$1')));
}
