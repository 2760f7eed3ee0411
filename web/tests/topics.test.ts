import assert from "node:assert/strict";
import { test } from "node:test";
import { stir_of } from "../src/diagnosis.ts";
import { topic_of } from "../src/topics.ts";

test("what the service streams has a topic, what has ended and all else has none", () => {
  assert.equal(topic_of("/api/v1/now"), "now");
  assert.equal(topic_of("/api/v1/targets/47/stacks"), "stacks:47");
  assert.equal(topic_of("/api/v1/diagnosis"), "diagnosis");
  assert.equal(topic_of("/api/v1/diagnosis?target=47"), "diagnosis:47");
  assert.equal(topic_of("/api/v1/targets/47@1gzbv/stacks"), undefined);
  assert.equal(topic_of("/api/v1/targets?dead=true"), undefined);
});

test("a rank that goes or stands still is seen, one that steps is not", () => {
  const steps = [
    { pid: 1, since: 0.1 },
    { pid: 2, since: null },
  ];
  assert.equal(stir_of(steps), stir_of([...steps].reverse()));
  assert.equal(stir_of(steps), stir_of([{ pid: 1, since: 2 }, steps[1]]));
  assert.notEqual(stir_of(steps), stir_of([{ pid: 1, since: 3 }, steps[1]]));
  assert.notEqual(stir_of(steps), stir_of([steps[1]]));
});
