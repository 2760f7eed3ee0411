// Numbers as people read them.
export function bytes(n: number | null | undefined): string {
  if (n === null || n === undefined) return "";
  for (const [unit, size] of [
    ["GB", 2 ** 30],
    ["MB", 2 ** 20],
    ["KB", 2 ** 10],
  ] as const)
    if (n >= size) return `${(n / size).toFixed(n >= 100 * size ? 0 : 1)} ${unit}`;
  return `${n} B`;
}

// The one way to print a duration: 0.52 ms, 140 ms, 2.3 s, 41 s, 4:12, 1:02:03, 2 d 5 h.
export function seconds(s: number | null | undefined): string {
  if (s === null || s === undefined) return "";
  if (s < 0.01) return `${(s * 1000).toFixed(s ? 2 : 0)} ms`;
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 60) return `${s.toFixed(s < 10 ? 1 : 0)} s`;
  const t = Math.floor(s),
    two = (n: number) => String(n).padStart(2, "0");
  if (t < 3600) return `${Math.floor(t / 60)}:${two(t % 60)}`;
  if (t < 86400) return `${Math.floor(t / 3600)}:${two(Math.floor((t % 3600) / 60))}:${two(t % 60)}`;
  return `${Math.floor(t / 86400)} d ${Math.floor((t % 86400) / 3600)} h`;
}

export const ms = (v: number) => seconds(v / 1000);

export function count(n: number | null | undefined): string {
  return n === null || n === undefined ? "" : n.toLocaleString("en-US");
}

export function some(n: number, what: string, many = `${what}s`): string {
  return `${count(n)} ${n === 1 ? what : many}`;
}

export function clock(at: number): string {
  return new Date(at).toTimeString().slice(0, 8);
}

// 0 to 36, 38
export function ranges(numbers: number[]): string {
  const sorted = [...new Set(numbers)].sort((a, b) => a - b),
    parts: string[] = [];
  for (let i = 0; i < sorted.length;) {
    let j = i;
    while (j + 1 < sorted.length && sorted[j + 1] === sorted[j] + 1) j++;
    parts.push(j === i ? `${sorted[i]}` : j === i + 1 ? `${sorted[i]}, ${sorted[j]}` : `${sorted[i]} to ${sorted[j]}`);
    i = j + 1;
  }
  return parts.join(", ");
}

// The last part of a path; of an installed package, from the package on.
export function short_file(file: string): string {
  const m = /.*\/(?:site|dist)-packages\/(.*)/.exec(file) ?? /.*\/lib\/python3[^/]*\/(.*)/.exec(file);
  return m ? m[1] : file.slice(file.lastIndexOf("/") + 1);
}

// What a person calls a job: the script or module, without the interpreter and its folder.
export function job_name(command: string): string {
  const words = command.split(" ").filter(Boolean);
  let i = /(^|\/)(python|pypy)[\w.]*$/.test(words[0] ?? "") ? 1 : 0;
  if (words[i] === "-m" && words[i + 1]) return words[i + 1];
  if (words[i] === "-c") return "python -c";
  while (i < words.length - 1 && words[i].startsWith("-") && words[i] !== "-") i++;
  const name = words[i] ?? command;
  return name === "-" ? "python -" : name.slice(name.lastIndexOf("/") + 1) || name;
}
