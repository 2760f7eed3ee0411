import assert from "node:assert/strict";
import { test } from "node:test";
import type { Process, Thread } from "../src/api";
import { call_words } from "../src/state-words";
import { first_end, merge, type Node } from "../src/tree";

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

const ends = (level: Node[]): { node: Node }[] => level.flatMap((node) => [{ node }, ...ends(node.children)]);
const first = (processes: Process[], culprits: number[] = []) =>
  first_end(ends(merge(processes, choice).root), processes.length, new Set(culprits))?.node.name;

test("the odd one is chosen first, the culprit before it, and nobody where all are at one place", () => {
  const four = [1, 2, 3].map((pid) => process(pid, "wait", "train")).concat(process(4, "fetch", "train"));
  assert.equal(first(four), "fetch");
  assert.equal(first(four, [2]), "wait");
  assert.equal(first([1, 2, 3].map((pid) => process(pid, "train"))), undefined);
  assert.equal(first([process(1, "step", "train")]), undefined);
});

test("a system call is told in words, and an unknown one as it is", () => {
  assert.equal(call_words("waiting in futex"), "waiting for another thread");
  assert.equal(call_words("waiting in clock_nanosleep"), "sleeping");
  assert.equal(call_words("waiting in io_uring_enter"), "waiting in io_uring_enter");
  assert.equal(call_words("running"), "running");
});
