import assert from "node:assert/strict";
import { test } from "node:test";
import { moved, stretches_of, type Look, type Recorded_cell } from "../src/timeline.ts";

const cell = (t: number, state: Recorded_cell["state"], pid = 1): Recorded_cell => ({ pid, t, state });
const look = (at: number, state: "coll" | "compute"): Look => ({ at, states: new Map([[1, state]]) });
const text = (cells: Recorded_cell[], looks: Look[]) =>
  stretches_of(1, cells, looks).map((s) => `${s.from}-${s.until} ${s.state}${s.recorded ? "" : "!"}`);

test("what was recorded fills the time before the page was opened", () => {
  const cells = [cell(0, "wait"), cell(5, "wait"), cell(10, "compute"), cell(10, "coll", 2)];
  assert.deepEqual(text(cells, [look(12, "coll"), look(13, "coll"), look(14, "compute")]), [
    "0-10 wait",
    "10-12 compute",
    "12-14 coll!",
    "14-15 compute!",
  ]);
});

test("a time without a look has what was recorded of it, or nothing", () => {
  assert.deepEqual(text([cell(5, "wait")], [look(0, "compute"), look(12, "compute")]), [
    "0-2 compute!",
    "5-10 wait",
    "12-13 compute!",
  ]);
  assert.deepEqual(text([], [look(0, "compute"), look(60, "compute")]), ["0-2 compute!", "60-61 compute!"]);
});

test("a look over the edge of two cells is drawn once", () => {
  assert.deepEqual(text([cell(0, "wait"), cell(5, "wait")], [look(4, "coll"), look(5.5, "coll"), look(7, "coll")]), [
    "0-4 wait",
    "4-8 coll!",
    "8-10 wait",
  ]);
});

test("zoom keeps the middle, and nothing moves beyond now", () => {
  assert.deepEqual(moved({ from: 100, until: 200 }, "w", 1000), { from: 125, until: 175 });
  assert.deepEqual(moved({ from: 100, until: 200 }, "s", 1000), { from: 50, until: 250 });
  assert.deepEqual(moved({ from: 100, until: 200 }, "a", 1000), { from: 75, until: 175 });
  assert.deepEqual(moved({ from: 900, until: 1000 }, "d", 1000), { from: 900, until: 1000 });
  assert.deepEqual(moved({ from: 900, until: 1000 }, "s", 1000), { from: 800, until: 1000 });
});
