import assert from "node:assert/strict";
import { test } from "node:test";
import { both, crossed, laid_over, smoothed } from "../src/curves.ts";

test("a smoothed curve begins at its first value, keeps a constant, and leaves gaps", () => {
  assert.deepEqual(smoothed([4, 4, null, 4], 0.9), [4, 4, null, 4]);
  assert.deepEqual(smoothed([1, 3], 0.5), [1, 7 / 3]);
  assert.deepEqual(smoothed([1, 3], 0), [1, 3]);
});

test("another run is laid over by step, whatever its own order", () => {
  assert.deepEqual(both([1, 3], [2, 3, 4]), [1, 2, 3, 4]);
  assert.deepEqual(laid_over([1, 2, 3, 4], [4, 2], [0.4, 0.2]), [null, 0.2, null, 0.4]);
});

test("a limit is crossed above it, and the first step of it is told", () => {
  assert.deepEqual(crossed([5, 6, 7], [1, 3, 4], 2), { n: 2, first: 6 });
  assert.deepEqual(crossed([5, 6, 7], [1, null, 2], 2), { n: 0, first: null });
});
