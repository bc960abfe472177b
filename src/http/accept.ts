const QUALITY = /;\s*q=([0-9.]+)/i;

/** Whether an `Accept` header gives one media type a higher quality than the other; what it does not name has quality 0. */
export function acceptsRather(accept: string | null, type: string, usual: string): boolean {
  if (accept === null) return false;
  return qualityOf(accept, type) > qualityOf(accept, usual);
}

function qualityOf(accept: string, type: string): number {
  for (const part of accept.split(',')) {
    const [name = ''] = part.split(';', 1);
    if (name.trim().toLowerCase() !== type) continue;
    const quality = Number(QUALITY.exec(part)?.[1] ?? 1);
    return Number.isNaN(quality) ? 0 : quality;
  }
  return 0;
}
