// How a process ended, as its tables have it: a row of process_end if it called exit(), and what catch kept of an
// error.
import type { Row } from "./api";

export const ENDED_SQL = `SELECT count(*) AS ended, arg_max(status, timestamp) AS status,
  (SELECT arg_max(type || coalesce(': ' || nullif(message, ''), ''), timestamp) FROM python.exceptions
   WHERE kind IN ('exception', 'signal')) AS error
FROM process_end`;

export interface Ending {
  word: string;
  title: string;
  well: boolean;
}

export function ending_of(row: Row | undefined): Ending {
  const error = row?.error ? String(row.error) : "";
  if (!row) return { word: "ended", title: "How it ended is not known", well: true };
  if (!Number(row.ended))
    return {
      word: error ? "died of an error" : "ended without a status",
      title: error || "It did not call exit(): it was killed, or left by _exit()",
      well: false,
    };
  const status = row.status === null || row.status === undefined ? null : Number(row.status);
  return {
    word: status === null ? "ended by itself" : `ended with status ${status}`,
    title: error || "Its exit status, as it told its agent",
    well: !status,
  };
}
