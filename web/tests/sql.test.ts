import assert from "node:assert/strict";
import { test } from "node:test";
import { axes_of, lines_of } from "../src/chart.ts";
import { widths_of, with_ranks, type Table } from "../src/grid-rows.ts";

const table = (columns: string[], ...rows: unknown[][]): Table => ({ columns, rows });
const loss = table(["rank", "step", "loss"], [0, 1, 0.5], [1, 1, 0.7], [0, 2, 0.4], [1, 2, null]);

test("steps are across, ranks are lines, and an id is not what is drawn", () => {
  const axes = axes_of(loss)!;
  assert.deepEqual(axes, { x: 1, y: 2, by: 0, kind: "number" });
  const { x, lines, left } = lines_of(loss, axes);
  assert.deepEqual(x, [1, 2]);
  assert.deepEqual(
    lines.map((l) => [l.name, l.values]),
    [
      ["rank 0", [0.5, 0.4]],
      ["rank 1", [0.7, null]],
    ],
  );
  assert.equal(left, 0);
});

test("time is across where there is time, whatever the order of the rows", () => {
  const t = table(["timestamp", "mb"], ["2026-01-01 00:00:02", 5], ["2026-01-01 00:00:01", 4]),
    axes = axes_of(t)!;
  assert.equal(axes.kind, "time");
  assert.deepEqual(lines_of(t, axes).lines[0].values, [4, 5]);
});

test("a few names are labels, not numbers of rows", () => {
  const t = table(["function", "n"], ["fetch", 95], ["step", 5]);
  assert.deepEqual(axes_of(t), { x: 0, y: 1, by: null, kind: "label" });
  assert.equal(axes_of(table(["a"], ["x"])), null);
});

test("a column is as wide as its content while there is room, and cut where there is none", () => {
  const t = table(["n", "command"], [1, "x".repeat(100)]);
  const [n, wide] = widths_of(t, 2000);
  assert.ok(wide >= 100 * 7 && n < 80);
  assert.ok(widths_of(t, 300)[1] < wide);
});

test("over a job a row tells its rank", () => {
  const t = table(["target_pid", "mb"], [47, 1], [48, 2]);
  assert.deepEqual(with_ranks(t, new Map([[47, 0]])), {
    columns: ["rank", "target_pid", "mb"],
    rows: [
      [0, 47, 1],
      [null, 48, 2],
    ],
  });
  assert.equal(with_ranks(loss, new Map([[47, 0]])), loss);
});
