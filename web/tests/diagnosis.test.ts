import assert from "node:assert/strict";
import { test } from "node:test";
import { by_gravity, mark_of, settle, unsettled, type DiagnosedJob, type Finding, type Judged } from "../src/diagnosis";

function finding(kind: string, rank: number, sure: Finding["sure"] = "likely"): Finding {
  return {
    kind,
    rank,
    sure,
    cause: null,
    ranks: null,
    pid: 100 + rank,
    thread: null,
    root: true,
    since_s: 12,
    place: null,
    says: `Rank ${rank}: ${kind}.`,
    evidence: [],
    why: null,
    next: null,
  };
}

function job(found: Finding | null, pids = [100, 101, 102]): DiagnosedJob {
  return {
    job: "train.py",
    verdict: found?.says ?? null,
    findings: found ? [found] : [],
    checked: ["waits"],
    ranks: pids.map((pid, rank) => ({ rank, pid, state: "S", error: null })),
  };
}

// The answers one after the other, five seconds apart unless told.
function told(answers: (Finding | null)[], apart = 5000): { jobs: Judged[]; shown: (string | null)[] } {
  let jobs: Judged[] = [];
  const shown = answers.map((found, i) => {
    jobs = settle(jobs, { jobs: [job(found)], seconds: 1 }, 1e6 + i * apart);
    return jobs[0].shown?.kind ?? null;
  });
  return { jobs, shown };
}

test("what is only likely is shown when a second answer agrees", () => {
  const slow = finding("slow_rank", 2);
  assert.deepEqual(told([slow]).shown, [null]);
  assert.ok(unsettled(told([slow]).jobs));
  assert.deepEqual(told([slow, null, slow, slow]).shown, [null, null, null, "slow_rank"]);
  assert.ok(!unsettled(told([slow, slow]).jobs));
});

test("another rank is no agreement", () => {
  assert.deepEqual(told([finding("slow_rank", 1), finding("slow_rank", 2)]).shown, [null, null]);
});

test("what is certain is shown at once", () => {
  assert.deepEqual(told([finding("deadlock", 1, "certain")]).shown, ["deadlock"]);
});

test("a finding goes after three answers without it, and its text follows the answers", () => {
  const lock = finding("lock_held", 1, "certain");
  assert.deepEqual(told([lock, null, null, lock, null, null, null]).shown, [
    "lock_held",
    "lock_held",
    "lock_held",
    "lock_held",
    "lock_held",
    "lock_held",
    null,
  ]);
  assert.equal(told([lock, { ...lock, says: "Later." }]).jobs[0].shown?.says, "Later.");
});

test("a headline changes at most once in ten seconds, unless something ended", () => {
  const one = finding("lock_held", 1, "certain"),
    two = finding("deadlock", 2, "certain"),
    gone = finding("rank_gone", 0, "certain");
  assert.deepEqual(told([one, two, one, two], 4000).shown, ["lock_held", "lock_held", "lock_held", "deadlock"]);
  assert.deepEqual(told([one, gone], 1000).shown, ["lock_held", "rank_gone"]);
});

test("a job is the same one while one of its processes is", () => {
  const lock = finding("lock_held", 1, "certain"),
    before = settle([], { jobs: [job(lock)], seconds: 1 }, 1e6);
  assert.equal(settle(before, { jobs: [job(null, [102, 103])], seconds: 1 }, 1e6 + 5000)[0].shown?.kind, "lock_held");
  assert.equal(settle(before, { jobs: [job(null, [200])], seconds: 1 }, 1e6 + 5000)[0].shown, null);
});

test("an answer about one job leaves the others as they were, one about all forgets what is gone", () => {
  const other = { ...job(finding("leak", 0, "certain"), [200]), job: "other.py" };
  const both = settle([], { jobs: [job(null), other], seconds: 1 }, 1e6),
    one = { jobs: [job(null)], seconds: 1 };
  assert.deepEqual(
    settle(both, one, 1e6 + 5000, false).map((j) => j.name),
    ["train.py", "other.py"],
  );
  assert.deepEqual(
    settle(both, one, 1e6 + 5000, true).map((j) => j.name),
    ["train.py"],
  );
});

test("marks say the state of a job, the gravest first", () => {
  const of = (f: Finding) => settle([], { jobs: [job(f, [f.pid!])], seconds: 1 }, 1e6)[0];
  const jobs = ["leak", "slow_rank", "nan", "deadlock", "rank_gone"].map((kind, i) => of(finding(kind, i, "certain")));
  assert.deepEqual(
    by_gravity(jobs).map((j) => mark_of(j).word),
    ["rank ended", "stuck", "NaN", "slow", "leaking"],
  );
  assert.deepEqual(mark_of(jobs[3]), { mark: "stuck", word: "stuck", since: 12 });
  assert.equal(mark_of(settle([], { jobs: [job(null)], seconds: 1 }, 1e6)[0]).word, "no problem found");
});
