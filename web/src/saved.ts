// Queries of this browser: the last ones, and those that have a name.
const HISTORY = "sql",
  SAVED = "sql-saved",
  KEPT = 30;

function read<T>(key: string, none: T): T {
  try {
    return (JSON.parse(localStorage.getItem(key) ?? "null") as T | null) ?? none;
  } catch {
    return none;
  }
}

export const past = () => read<string[]>(HISTORY, []);

export function remember(text: string) {
  localStorage.setItem(HISTORY, JSON.stringify([text, ...past().filter((t) => t !== text)].slice(0, KEPT)));
}

export const saved = () => read<Record<string, string>>(SAVED, {});

// text null: it is forgotten.
export function save(name: string, text: string | null) {
  const all = saved();
  if (text === null) delete all[name];
  else all[name] = text;
  localStorage.setItem(SAVED, JSON.stringify(all));
}
