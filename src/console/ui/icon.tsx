/** Icons of 16 by 16 in the color of the text. They are decorative: the text next to them has the meaning. */
const PATHS = {
  overview: 'M2 9h4V2H2zM10 14h4V7h-4zM2 14h4v-2H2zM10 4h4V2h-4z',
  queues: 'M2 3h12M2 6.5h12M2 10h12M2 13.5h7',
  dead: 'M8 1.5 14.5 13h-13zM8 6v3.5M8 11.3v.4',
  exchange: 'M2 4.5h11M10.5 2 13 4.5 10.5 7M14 11.5H3M5.5 9 3 11.5 5.5 14',
  operations: 'M3 2.5h10v11H3zM5.5 6l1 1 2-2M5.5 10.5l1 1 2-2M10 6.2h1M10 10.7h1',
  clients: 'M1.5 3h8v6h-8zM3.5 13.5h4M5.5 9v4.5M11.5 6H14v7.5h-3.5v-2',
  users: 'M8 7.5a2.7 2.7 0 1 0 0-5.4 2.7 2.7 0 0 0 0 5.4zM2.8 14c.4-2.9 2.4-4.5 5.2-4.5s4.8 1.6 5.2 4.5',
  search: 'M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10zM10.6 10.6 14 14',
  ok: 'M8 14.2A6.2 6.2 0 1 0 8 1.8a6.2 6.2 0 0 0 0 12.4zM5.3 8.2l2 2 3.5-4',
  warn: 'M8 1.8 14.6 13.5H1.4zM8 6.2v3.6M8 11.6v.3',
  bad: 'M5.3 1.8h5.4l3.5 3.5v5.4l-3.5 3.5H5.3l-3.5-3.5V5.3zM8 4.8v4M8 10.9v.3',
  paused: 'M5.5 3v10M10.5 3v10',
  play: 'M4.5 2.5v11l8.5-5.5z',
  live: 'M8 9.3a1.3 1.3 0 1 0 0-2.6 1.3 1.3 0 0 0 0 2.6zM4.8 11.2a4.5 4.5 0 0 1 0-6.4M11.2 4.8a4.5 4.5 0 0 1 0 6.4M2.7 13.3a7.5 7.5 0 0 1 0-10.6M13.3 2.7a7.5 7.5 0 0 1 0 10.6',
  clock: 'M8 14.2A6.2 6.2 0 1 0 8 1.8a6.2 6.2 0 0 0 0 12.4zM8 4.5V8l2.5 1.5',
  lock: 'M3.5 7h9v6.5h-9zM5.5 7V4.7a2.5 2.5 0 0 1 5 0V7',
  sun: 'M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M3 13l1-1M12 4l1-1',
  moon: 'M13.5 9.7A6 6 0 0 1 6.3 2.5a6 6 0 1 0 7.2 7.2z',
  menu: 'M2 4h12M2 8h12M2 12h12',
  close: 'M3.5 3.5l9 9M12.5 3.5l-9 9',
  more: 'M3.5 8h.1M8 8h.1M12.5 8h.1',
  down: 'M3.5 6 8 10.5 12.5 6',
  right: 'M6 3.5 10.5 8 6 12.5',
  up: 'M3.5 10 8 5.5 12.5 10',
  refresh: 'M13.5 8A5.5 5.5 0 1 1 11.7 4M13.5 1.8v3.4h-3.4',
  plus: 'M8 2.5v11M2.5 8h11',
  copy: 'M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3',
  redrive: 'M2.5 6.5h8a3 3 0 0 1 0 6H6M5.5 3.5l-3 3 3 3',
  trash: 'M2.5 4h11M6 4V2.5h4V4M4 4l.7 9.5h6.6L12 4M6.7 6.8v4M9.3 6.8v4',
  move: 'M2 8h11M9.5 4.5 13 8l-3.5 3.5',
  download: 'M8 2v8.5M4.5 7.5 8 11l3.5-3.5M2.5 13.5h11',
  columns: 'M2.5 3h11v10h-11zM6.2 3v10M9.8 3v10',
  bookmark: 'M4 2.5h8v11l-4-3-4 3z',
  keyboard: 'M1.5 4h13v8h-13zM4 6.7h.1M6.7 6.7h.1M9.3 6.7h.1M12 6.7h.1M5 9.5h6',
  exit: 'M6.5 2.5h-4v11h4M6 8h8M11 5l3 3-3 3',
  code: 'M5.5 4 1.8 8l3.7 4M10.5 4l3.7 4-3.7 4',
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { readonly name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}
