import type { Config } from '../config/options.ts';

/** Says it if clients could use up the files that this process may open; null if they cannot, or it is not known. */
export function openFilesWarning({ http, stomp, amqp }: Config): string | null {
  const listeners = Object.entries({ http, stomp, amqp }).filter(([, { port }]) => port !== undefined);
  const needed = listeners.reduce((sum, [, { maxSockets }]) => sum + maxSockets, 0);
  const limit = openFilesLimit();
  if (limit === null || needed <= limit) return null;
  const options = listeners.map(([name, { maxSockets }]) => `${name}.maxSockets: ${maxSockets}`).join(', ');
  return (
    `this process may open ${limit} files, fewer than the connections that it may keep (${options}): ` +
    'raise the limit (ulimit -n, LimitNOFILE of systemd, ulimits of a container) or lower maxSockets'
  );
}

/** The soft limit, which Node raises to the hard one when it starts; null if it is not known, or there is none. */
function openFilesLimit(): number | null {
  // The types do not know this one. Looking at the network would ask for the names of addresses.
  const report: NodeJS.ProcessReport & { excludeNetwork?: boolean } = process.report;
  report.excludeNetwork = true;
  const { userLimits } = report.getReport() as { userLimits?: { open_files?: { soft?: unknown } } };
  const soft = userLimits?.open_files?.soft;
  return typeof soft === 'number' ? soft : null;
}
