import assert from "node:assert/strict";
import { test } from "node:test";
import { compare, type Held } from "../src/compare.ts";
import { memory_words, recorded_words, type Takes } from "../src/memory-words.ts";
import { find_step, steps_of, took_long } from "../src/steps.ts";

const held = (values: (string | null)[]): Held[] =>
  values.map((value, i) => ({ label: `rank ${i}`, pid: 100 + i, value, where: "" }));
const TENSOR = "tensor(shape=(2, 2), dtype=float32)";

test("tensors of one shape are not the same for that, until their numbers were read", () => {
  const rows = held([TENSOR, TENSOR, TENSOR]);
  assert.equal(compare("w", rows, undefined).title, "w was not read: only its kind is known.");
  const numbers = new Map([
    [100, "0.974"],
    [101, "0.999"],
    [102, "0.974"],
  ]);
  assert.equal(compare("w", rows, numbers).title, "w differs in rank 1.");
  assert.deepEqual([...compare("w", rows, numbers).odd], [101]);
});

test("what could not be read is neither the same nor different", () => {
  const numbers = new Map([
    [100, "0.5"],
    [101, "0.5"],
    [102, null],
  ]);
  const found = compare("w", held([TENSOR, TENSOR, TENSOR]), numbers);
  assert.equal(found.title, "w is the same in the 2 of 3 that were read.");
  assert.ok(!found.read.has(102) && !found.odd.size);
});

test("a value of which all are different has no odd rank", () => {
  const found = compare("rank", held(["0", "1", "2"]), undefined);
  assert.equal(found.title, "rank is different in each of all 3.");
  assert.equal(found.odd.size, 0);
});

const steps = steps_of([5, 6, 7, 9].map((step, i) => ({ step, duration_ms: [10, 10, 30, 11][i] })));

test("a step that is not kept is not shown as another one", () => {
  assert.deepEqual(find_step(steps, 6), { at: 1, nearest: 6 });
  assert.deepEqual(find_step(steps, 5001), { at: null, nearest: 9 });
  assert.deepEqual(find_step(steps, null), { at: 2, nearest: 7 });
});

test("a usual step did not take long", () => {
  assert.ok(took_long(steps, 2));
  assert.ok(!took_long(steps, 3));
});

const MB = 2 ** 20,
  takes: Takes = { rss_bytes: 300 * MB, growth_bytes_per_minute: null, grows_by: null, recorded_s: 4 };

test("memory has no rate before there is one", () => {
  assert.equal(memory_words(takes, false), "It takes 300 MB.");
  assert.equal(recorded_words(takes), "Recorded for 4.0 s: too short to say whether it grows.");
  assert.equal(recorded_words({ ...takes, recorded_s: null }), "Nothing is recorded over time yet.");
});

test("what grows is told with the line of the table", () => {
  const by = { function: "keep", file: "/job/leak.py", line: 7, bytes: 20 * MB };
  const grows = { ...takes, growth_bytes_per_minute: 5 * MB, grows_by: by, recorded_s: 90 };
  assert.equal(
    memory_words(grows, false),
    "It takes 300 MB, growing by 5.0 MB a minute, 20.0 MB of it held by keep (leak.py:7).",
  );
  assert.equal(
    memory_words({ ...takes, growth_bytes_per_minute: 0 }, true),
    "At its end it took 300 MB and did not grow.",
  );
});
