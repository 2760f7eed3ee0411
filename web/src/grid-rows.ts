// Rows of a result as text, and how wide their columns are.
export interface Table {
  columns: string[];
  rows: unknown[][];
}

export function cell_text(v: unknown): string {
  return v === null || v === undefined
    ? "NULL"
    : typeof v === "object"
      ? JSON.stringify(v)
      : typeof v === "number" && !Number.isInteger(v)
        ? String(Number(v.toPrecision(7)))
        : String(v);
}

export function is_numeric(table: Table, column: number): boolean {
  let seen = false;
  for (const row of table.rows.slice(0, 200)) {
    if (typeof row[column] === "number") seen = true;
    else if (row[column] !== null) return false;
  }
  return seen;
}

const LETTER = 7.2,
  LEAST = 6,
  USUAL = 52, // letters, where there is no room for more
  WIDEST = 600;

// As wide as the content while there is room: what is left over goes to the columns that are cut, the narrowest first.
export function widths_of(table: Table, room: number): number[] {
  const need = table.columns.map((name, i) => {
    let most = name.length + 2;
    for (const row of table.rows.slice(0, 200)) most = Math.max(most, cell_text(row[i]).length);
    return Math.min(WIDEST, Math.max(LEAST, most));
  });
  const pad = (i: number) => (i ? 18 : 26),
    px = need.map((n, i) => n * LETTER + pad(i)),
    widths = need.map((n, i) => Math.min(USUAL, n) * LETTER + pad(i));
  let left = room - 16 - widths.reduce((a, b) => a + b, 0);
  const cut = need.map((_, i) => i).filter((i) => px[i] > widths[i]);
  cut.sort((a, b) => px[a] - px[b]);
  cut.forEach((i, k) => {
    const more = Math.max(0, Math.min(px[i] - widths[i], left / (cut.length - k)));
    widths[i] += more;
    left -= more;
  });
  return widths;
}

// Over a job: which rank a row is of, where the result has only its process.
export function with_ranks(table: Table, rank_of: Map<number, number>): Table {
  const pid = table.columns.indexOf("target_pid");
  if (pid < 0 || table.columns.includes("rank") || !rank_of.size) return table;
  return {
    columns: ["rank", ...table.columns],
    rows: table.rows.map((r) => [rank_of.get(Number(r[pid])) ?? null, ...r]),
  };
}
