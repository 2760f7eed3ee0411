import assert from "node:assert/strict";
import { test } from "node:test";
import type { Process, Thread } from "../src/api";
import { merge } from "../src/tree";

function process(pid: number, ...functions: string[]): Process {
  const frames = functions.map((name) => ({
    function: name,
    name,
    file: "/job/train.py",
    line: 1,
    first_line: 1,
    own: true,
  }));
  const thread: Thread = {
    tid: pid,
    name: "MainThread",
    native_name: "python",
    state: "running",
    running: true,
    python: true,
    frames,
  };
  return {
    pid,
    label: `rank ${pid}`,
    command: "train.py",
    python: "3.12",
    verdict: null,
    notes: [],
    threads: [thread],
  };
}

const choice = { lines: false, threads: false, idle: false };

test("equal frames are one node, the rarest branch comes first", () => {
  const { root, who } = merge(
    [process(1, "wait", "train"), process(2, "wait", "train"), process(3, "fetch", "train")],
    choice,
  );
  assert.equal(who.length, 3);
  assert.deepEqual(
    root.map((n) => [n.name, n.processes]),
    [["train", 3]],
  );
  assert.deepEqual(
    root[0].children.map((n) => [n.name, n.processes]),
    [
      ["fetch", 1],
      ["wait", 2],
    ],
  );
  assert.deepEqual(
    root[0].children[0].ends.map((w) => w.process.pid),
    [3],
  );
});

test("a stack that ends above others is an end of its own", () => {
  const { root } = merge([process(1, "train"), process(2, "wait", "train")], choice);
  assert.deepEqual(
    root[0].ends.map((w) => w.process.pid),
    [1],
  );
});
