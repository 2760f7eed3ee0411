"""Views of a job show all of its ranks on one axis."""
import os
import subprocess
import sys
import urllib.parse
from contextlib import ExitStack, contextmanager

import pytest
from jobs import PROGRAM
from page_kit import AXE, browse, browser_only, wait_for
from serve_kit import NEEDS_SERVE, service

pytestmark = [NEEDS_SERVE, browser_only]

JOB = """
import os, time, probing
for step in range(40):
    probing.log(step=step, loss=(1 + int(os.environ["RANK"])) / (step + 1))
print("ready", flush=True)
time.sleep(600)
"""


@contextmanager
def two_ranks(folder):
    (folder / "two_ranks.py").write_text(JOB)
    with ExitStack() as stack:
        for rank in "01":
            process = stack.enter_context(subprocess.Popen(
                [PROGRAM, "launch", "--", sys.executable, str(folder / "two_ranks.py")],
                env={**os.environ, "RANK": rank, "WORLD_SIZE": "2"}, stdout=subprocess.PIPE, text=True))
            stack.callback(process.kill)
            assert process.stdout.readline() == "ready\n"
        yield


@pytest.mark.timeout(200)
@pytest.mark.parametrize("width", [1440, 390])
def test_memory_and_training_of_a_job_have_a_line_a_rank(tmp_path, width):
    with two_ranks(tmp_path), service(tmp_path / "r") as served:
        job = "target=two_ranks.py&all=1"
        found = browse(served, tmp_path, ["open", f"#/training?{job}"], ["find", "[role=img][aria-label^=loss]"],
                       ["text", "main h1"], ["evaluate", "document.querySelector('main [role=img]').ariaLabel"],
                       ["text", "main .keys"], ["axe", "main"], ["outside"], ["text", ".foot code"],
                       ["open", f"#/memory?{job}"], ["find", "[role=img][aria-label^=Resident]"],
                       ["text", "main .keys"], ["text", "main table"], ["axe", "main"], ["outside"],
                       ["click", "main table a"], ["see", "It takes"], axe=str(AXE), width=width,
                       pictures=os.environ.get("PAGE_PICTURES"))
    assert found[2] == "loss of 2 ranks, to step 39."
    assert found[3] == "loss of each rank: 40 points, at the end rank 0 0.025, rank 1 0.05"
    assert found[4].split("\n") == found[10].split("\n") == ["rank 0", "rank 1"]
    assert found[5] == found[6] == found[12] == found[13] == []
    assert "--all query" in found[7]
    assert "rank 0, pid" in found[11] and "rank 1, pid" in found[11]


HOVER = """(() => {
    const c = document.querySelector("canvas.lanes"), r = c.getBoundingClientRect();
    const at = { clientX: r.left + r.width / 2, clientY: r.top + 4, bubbles: true };
    c.dispatchEvent(new PointerEvent("pointermove", at));
})()"""


@pytest.mark.timeout(200)
def test_now_shows_what_ranks_did_before_the_page_was_open_and_keeps_the_time_in_all_views(tmp_path):
    rows = ("SELECT 5 * CAST(floor(epoch(timestamp) / 5) AS BIGINT) AS t, count(DISTINCT target_pid) AS ranks "
            "FROM memory_usage GROUP BY t ORDER BY t")
    with two_ranks(tmp_path), service(tmp_path / "r") as served:
        def recorded():
            """A cell of the lanes that has rows of both ranks, with as much before and behind it."""
            cells = served.json("/api/v1/query?target=two_ranks.py&all=true", body=rows)
            whole = [c["t"] for c in cells[1:] if c["ranks"] == 2 and cells[-1]["t"] - c["t"] >= 10]
            return whole[0] if whole else None

        begin = wait_for(recorded, 100) - 3.5
        job = f"target=two_ranks.py&all=1&range={begin:.3f}-{begin + 12:.3f}"
        found = browse(served, tmp_path, ["open", f"#/now?{job}"], ["find", "canvas.lanes"], ["evaluate", HOVER],
                       ["see", "as recorded"], ["text", ".sec:has(+ .chart canvas.lanes)"],
                       ["press", "w"], ["evaluate", "location.hash"], ["press", "g"], ["press", "m"],
                       ["find", "main table"], ["evaluate", "location.hash"])
    assert "rank 0: waiting" in found[4]
    zoomed = urllib.parse.parse_qs(found[6].partition("?")[2])["range"][0]
    assert [float(t) - begin for t in zoomed.split("-")] == pytest.approx([3, 9], abs=0.01)
    assert urllib.parse.parse_qs(found[10].partition("?")[2])["range"][0] == zoomed


@pytest.mark.timeout(200)
def test_columns_are_hidden_and_stay_so_and_a_curve_has_a_limit_and_is_smoothed(tmp_path):
    with two_ranks(tmp_path), service(tmp_path / "r") as served:
        pid = next(t["pid"] for t in served.json("/api/v1/targets") if t["command"].endswith("two_ranks.py"))
        found = browse(served, tmp_path, ["open", "#/now?target=two_ranks.py&all=1"],
                       ["click", ".columns > button"], ["click", ".columns label:has-text('Memory')"],
                       ["press", "Escape"], ["gone", ".columns .pop"], ["text", ".columns table"],
                       ["open", "#/runs"], ["find", "main table"], ["open", "#/now?target=two_ranks.py&all=1"],
                       ["find", ".columns > button:has-text(' of ')"], ["text", ".columns table"],
                       ["open", f"#/training?target={pid}&smooth=0.5"], ["click", "input.limit"], ["type", "0.1"],
                       ["press", "Enter"], ["see", "over 0.1 in"], ["text", ".sec:has(input.limit)"])
    assert "Memory" not in found[5] and "State" in found[5]
    assert "Memory" not in found[10]
    over = {"0": 9, "1": 19}  # of 1 / (step + 1), and of twice as much
    assert "smoothed by 0.5" in found[16]
    assert any(f"over 0.1 in {n}, first in step 0" in found[16] for n in over.values())


CHOOSE = """(() => {
    const s = document.querySelector("select[aria-label='Saved queries']");
    s.value = "losses";
    s.dispatchEvent(new Event("change", { bubbles: true }));
})()"""


@pytest.mark.timeout(200)
def test_a_result_of_a_job_has_a_line_a_rank_and_a_query_keeps_its_name(tmp_path):
    sql = urllib.parse.quote("SELECT rank, step, loss FROM training_logs ORDER BY step")
    with two_ranks(tmp_path), service(tmp_path / "r") as served:
        found = browse(served, tmp_path, ["open", f"#/sql?target=two_ranks.py&all=1&as=chart&q={sql}"],
                       ["see", "80 rows"], ["find", ".sql .keys"], ["text", ".sql .keys"],
                       ["evaluate", "document.querySelector('.sql [role=img]').ariaLabel"],
                       ["click", "button:has-text('Save as')"], ["type", "losses"], ["press", "Enter"],
                       ["find", "select[aria-label='Saved queries']"], ["evaluate", CHOOSE], ["see", "80 rows"],
                       ["click", "button:has-text('Save as')"], ["click", "button:has-text('Forget it')"],
                       ["gone", "select[aria-label='Saved queries']"])
    assert found[3].split("\n") == ["rank 0", "rank 1"]
    assert found[4].startswith("loss: 40 points, at the end rank 0 0.025, rank 1 0.05")
