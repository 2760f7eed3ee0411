import assert from "node:assert/strict";
import { test } from "node:test";
import { pattern_words, period_of, type Of_rank } from "../src/pattern.ts";

const rank = (name: string, slow: (step: number) => boolean, n = 40): Of_rank => ({
  rank: name,
  steps: Array.from({ length: n }, (_, i) => ({
    step: 100 + i,
    is: slow(100 + i) ? 500 : 200,
    usual: 200,
    slow: slow(100 + i),
  })),
});

test("a rank that is slow in every tenth step is told so, and not by its worst step", () => {
  const ranks = [rank("0", () => false), rank("2", (s) => s % 10 === 0)];
  assert.equal(
    pattern_words(ranks, "data"),
    "Rank 2 is slow in every tenth step: 500 ms of data, where the median is 200 ms.",
  );
});

test("a rank that is slow at random or in most steps has a count", () => {
  assert.match(
    pattern_words([rank("1", (s) => [101, 104, 120].includes(s))], "data"),
    /^Rank 1 is slow in 3 of 40 steps/,
  );
  assert.match(pattern_words([rank("1", () => true)], "data"), /^Rank 1 is slow in 40 of 40 steps/);
  assert.match(pattern_words([rank("1", (s) => s === 117)], "data"), /^Rank 1 is slow in step 117 of the last 40/);
});

test("where nobody is slow nobody is named, and of several all are", () => {
  assert.equal(pattern_words([rank("0", () => false)], "data"), "No rank is behind the others.");
  const odd = (s: number) => s % 2 === 0;
  assert.match(pattern_words([rank("0", odd), rank("3", odd), rank("4", odd)], "data"), /So are ranks 3, 4\.$/);
});

test("a period needs three steps with the same distance", () => {
  assert.equal(period_of([10, 20]), null);
  assert.equal(period_of([10, 20, 30, 40]), 10);
  assert.equal(period_of([10, 11, 30, 47]), null);
  assert.equal(period_of([1, 2, 3, 4]), null);
  assert.equal(period_of([10, 17, 20, 30, 31, 40, 50]), 10); // two more were slow for another reason
});
