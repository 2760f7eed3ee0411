import assert from "node:assert/strict";
import { test } from "node:test";
import { ending_of } from "../src/ended.ts";

test("how a process ended is told as its tables have it", () => {
  assert.equal(ending_of({ ended: 1, status: 0, error: null }).word, "ended with status 0");
  const failed = ending_of({ ended: 1, status: 1, error: "ValueError: no batch" });
  assert.deepEqual([failed.word, failed.title, failed.well], ["ended with status 1", "ValueError: no batch", false]);
  assert.equal(ending_of({ ended: 1, status: null, error: null }).word, "ended by itself");
});

test("a process without an exit status is not said to have ended well", () => {
  const killed = ending_of({ ended: 0, status: null, error: null });
  assert.equal(killed.word, "ended without a status");
  assert.ok(!killed.well);
  assert.equal(ending_of(undefined).word, "ended");
});
