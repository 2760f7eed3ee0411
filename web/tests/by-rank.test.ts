import assert from "node:assert/strict";
import { test } from "node:test";
import type { Row } from "../src/api";
import { lines_by_rank } from "../src/by-rank";

const row = (rank: number, step: number, loss: number | null): Row => ({ rank, target_pid: 100 + rank, step, loss });

test("ranks share one axis, and a rank without a value there has a gap", () => {
  const { x, lines } = lines_by_rank([row(1, 2, 20), row(0, 1, 1), row(0, 2, 2), row(1, 3, 30)], "step", "loss");
  assert.deepEqual(x, [1, 2, 3]);
  assert.deepEqual(
    lines.map((l) => [l.name, l.values]),
    [
      ["rank 0", [1, 2, null]],
      ["rank 1", [null, 20, 30]],
    ],
  );
});

test("what is no number is a gap", () => {
  assert.deepEqual(lines_by_rank([row(0, 1, null), row(0, 2, 5)], "step", "loss").lines[0].values, [null, 5]);
});

test("of many ranks the highest, middle and lowest are drawn", () => {
  const { lines } = lines_by_rank(
    Array.from({ length: 65 }, (_, rank) => row(rank, 1, rank)),
    "step",
    "loss",
  );
  assert.deepEqual(
    lines.map((l) => [l.name, l.values[0]]),
    [
      ["highest", 64],
      ["middle", 32],
      ["lowest", 0],
    ],
  );
});
