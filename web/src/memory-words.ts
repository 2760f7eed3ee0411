// What the page says of the memory of a process, in a sentence.
import { bytes, seconds, short_file } from "./format";

export interface Takes {
  rss_bytes: number;
  growth_bytes_per_minute: number | null;
  grows_by: { function: string; file: string; line: number; bytes: number } | null;
  recorded_s: number | null;
}

// A rate is told only where the command has judged one; of what grows, the line that its table below has.
export function memory_words(m: Takes, dead: boolean): string {
  const takes = `${dead ? "At its end it took" : "It takes"} ${bytes(m.rss_bytes)}`,
    rate = m.growth_bytes_per_minute,
    by = m.grows_by;
  if (rate === null) return `${takes}.`;
  if (!rate) return `${takes} and ${dead ? "did" : "does"} not grow.`;
  const line = by ? `, ${bytes(by.bytes)} of it held by ${by.function} (${short_file(by.file)}:${by.line})` : "";
  return `${takes}, ${rate > 0 ? "growing" : "shrinking"} by ${bytes(Math.abs(rate))} a minute${line}.`;
}

export function recorded_words(m: Takes): string {
  if (!m.recorded_s) return "Nothing is recorded over time yet.";
  const for_now = `Recorded for ${seconds(m.recorded_s)}`;
  return m.growth_bytes_per_minute === null ? `${for_now}: too short to say whether it grows.` : `${for_now}.`;
}
