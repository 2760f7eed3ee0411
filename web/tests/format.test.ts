import assert from "node:assert/strict";
import { test } from "node:test";
import { bytes, job_name, ms, ranges, seconds, short_file } from "../src/format";

test("a duration is printed in one way", () => {
  assert.deepEqual([0, 0.0005, 0.14, 2.34, 41.2, 252, 3723, 190000].map(seconds), [
    "0 ms",
    "0.50 ms",
    "140 ms",
    "2.3 s",
    "41 s",
    "4:12",
    "1:02:03",
    "2 d 4 h",
  ]);
  assert.equal(ms(2340), seconds(2.34));
  assert.equal(seconds(null), "");
});

test("ranks are ranges, each once", () => {
  assert.equal(ranges([3, 0, 1, 2, 5, 5]), "0 to 3, 5");
  assert.equal(ranges([7, 8]), "7, 8");
});

test("sizes and names", () => {
  assert.deepEqual([0, 999, 2048, 150 * 2 ** 20].map(bytes), ["0 B", "999 B", "2.0 KB", "150 MB"]);
  assert.equal(job_name("/usr/bin/python3 -u /srv/job/train.py --lr 1"), "train.py");
  assert.equal(job_name("python -m torch.run x"), "torch.run");
  assert.equal(short_file("/opt/lib/python3.12/site-packages/torch/nn.py"), "torch/nn.py");
});
