/** The cells of each row of a page's table whose first column has this title; none if there is no such table. */
export function pageTable(page: string, firstColumn: string): string[][] {
  const lines = page.split('\n');
  const head = lines.findIndex((line) => line.startsWith(`| ${firstColumn} |`));
  if (head === -1) return [];
  const rows: string[][] = [];
  for (const line of lines.slice(head + 2)) {
    if (!line.startsWith('|')) break;
    rows.push(
      line
        .split('|')
        .slice(1, -1)
        .map((cell) => cell.trim()),
    );
  }
  return rows;
}
