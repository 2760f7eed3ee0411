// System calls in which a thread waits, in words.
const PLAIN: [RegExp, string][] = [
  [/^futex/, "waiting for another thread"],
  [/nanosleep$/, "sleeping"],
  [/^(p?poll|p?select6?|epoll_p?wait2?)$/, "waiting for I/O"],
  [/^(p?read(v|64)?|recv\w*)$/, "reading"],
  [/^(p?write(v|64)?|send\w*)$/, "writing"],
  [/^accept4?$/, "waiting for a connection"],
  [/^connect$/, "connecting"],
  [/^wait(4|id|pid)$/, "waiting for a child process"],
  [/^flock$/, "waiting for a file lock"],
  [/sync$/, "writing to disk"],
];

// "waiting in futex" in words; what has none stays as it is. The raw text is shown on hover.
export function call_words(state: string): string {
  const call = /^waiting in (\w+)/.exec(state)?.[1];
  return PLAIN.find(([is]) => call && is.test(call))?.[1] ?? state;
}
