import assert from "node:assert/strict";
import { test } from "node:test";
import { diff_folded, flame_words, hits_of, parse_folded, share_of, tops } from "../src/flame.ts";

const JOB = `main (train.py);step (train.py);fetch (data.py) 62
main (train.py);step (train.py);forward (torch/nn.py) 30
main (train.py);save (train.py) 8`;

test("a flame graph says where the time goes, and in which function of one's own", () => {
  assert.equal(
    flame_words(parse_folded(JOB)),
    "The time goes: 62% in fetch (data.py); 30% in forward (torch/nn.py); 8% in save (train.py). " +
      "step (train.py) and what it calls take 92%.",
  );
  const flat = Array.from({ length: 40 }, (_, i) => `main (a.py);f${i} (a.py) 1`).join("\n");
  assert.equal(flame_words(parse_folded(flat)), "No function takes more than 5% of the time itself.");
});

test("a wait is time of the function that waits", () => {
  const f = parse_folded("rank 0;train (a.py);[waiting in futex] 60\nrank 0;train (a.py) 10\nrank 1;save (a.py) 30");
  assert.equal(flame_words(f), "The time goes: 70% in train (a.py), waiting for another thread; 30% in save (a.py).");
});

test("a function that calls itself counts once", () => {
  const f = parse_folded("walk (a.py);walk (a.py);walk (a.py) 10");
  assert.deepEqual([tops(f)[0].total, tops(f)[0].self], [10, 10]);
});

test("what fits a search is counted once, and of two graphs the difference is by share", () => {
  const f = parse_folded(JOB);
  assert.equal(share_of(f, 0, hits_of(f, "step")), 0.92);
  const d = tops(diff_folded("f (a.py) 10", "f (a.py) 1\ng (a.py) 1"));
  assert.deepEqual(
    d.map((t) => [t.name, t.a, t.b]),
    [
      ["f (a.py)", 1, 0.5],
      ["g (a.py)", 0, 0.5],
    ],
  );
});
