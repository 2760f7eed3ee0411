"""The service with real clients of others: a fuzzer of APIs, the client of the Model Context Protocol, go tool pprof.
The first two are large, and installed for the long form alone (requirements/clients.in)."""
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import PROGRAM
from serve_kit import NEEDS_SERVE, job, served  # noqa: F401 (fixtures)

pytestmark = NEEDS_SERVE

# In a pid namespace of its own: what the fuzzer makes up are pids, and a service of root's would inject into whatever
# has them. The fuzzer itself stays outside of it, or it may ask for a pause of its own process.
FUZZED = r"""
mount -t proc proc /proc
"$2" -c 'import time
def train():
    while True: time.sleep(0.01)
train()' &
XDG_RUNTIME_DIR=$1 PROBING_ARCHIVE=$1/archive exec "$3" serve --cores "$1" 127.0.0.1:0
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a pid namespace")
@pytest.mark.timeout(400)
def test_schemathesis_finds_nothing(tmp_path, soak):
    st = Path(sys.executable).with_name("st")
    if not st.exists():
        pytest.skip("schemathesis is not installed: scripts/setup.sh test")
    seconds = "60" if soak else "15"
    service = subprocess.Popen(["unshare", "-fpm", "--kill-child", "sh", "-c", FUZZED, "fuzz", tmp_path, sys.executable,
                                PROGRAM], stdout=subprocess.PIPE, text=True)
    try:
        url, _, token = service.stdout.readline().strip().partition("/?token=")
        done = subprocess.run([st, "--config-file", Path(__file__).with_name("schemathesis.toml"), "run",
                               f"{url}/openapi.json", "-H", f"Authorization: Bearer {token}",
                               "--checks", "all", "-n", "20", "--workers", "1", "--exclude-path", "/api/v1/events",
                               "--request-timeout", "5", "--max-time", seconds],
                              capture_output=True, text=True, timeout=float(seconds) + 120, cwd=tmp_path)
        assert service.poll() is None, "the service has ended"
    finally:
        service.kill()
        service.wait()
    # Beside findings it reports requests that it gave up: profiles of many seconds.
    assert "Failures:" not in done.stdout and "Test cases:" in done.stdout, done.stdout[-12000:] + done.stderr[-2000:]


CLIENT = """
import asyncio, sys
from mcp import ClientSession
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client
async def main(url, token, pid):
    async with create_mcp_http_client(headers={"Authorization": f"Bearer {token}"}) as client:
        async with streamable_http_client(url, http_client=client) as streams:
            async with ClientSession(streams[0], streams[1]) as session:
                await session.initialize()
                tools = await session.list_tools()
                print("stacks" in [tool.name for tool in tools.tools])
                answer = await session.call_tool("stacks", {"target": pid})
                print("train" in answer.content[0].text)
asyncio.run(main(*sys.argv[1:]))
"""


def test_the_client_of_the_model_context_protocol(served, job):
    if not importlib.util.find_spec("mcp"):
        pytest.skip("mcp is not installed: scripts/setup.sh test")
    done = subprocess.run([sys.executable, "-c", CLIENT, f"http://{served.address}/mcp", served.token, str(job.pid)],
                          capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\nTrue\n", done.stderr


def test_go_reads_the_profile(served, job, tmp_path):
    if not shutil.which("go"):
        pytest.skip("Go is not installed")
    url = f"http://any:{served.token}@{served.address}/debug/pprof/profile?seconds=1&target={job.pid}&idle=1"
    done = subprocess.run(["go", "tool", "pprof", "-top", url], capture_output=True, text=True, timeout=60,
                          cwd=tmp_path, env={**os.environ, "PPROF_TMPDIR": str(tmp_path)})
    assert done.returncode == 0 and "train" in done.stdout, done.stderr


def test_curl_gets_what_the_docs_say(served, job, tmp_path):
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    def curl(*words):
        return subprocess.run(["curl", "-sS", "-H", f"Authorization: Bearer {served.token}", *words],
                              capture_output=True, text=True, timeout=30, check=True).stdout
    assert job.pid in [row["pid"] for row in json.loads(curl(f"http://{served.address}/api/v1/targets"))]
    assert curl("-d", "SELECT 1 AS a", f"http://{served.address}/api/v1/query?format=csv") == "a\n1\n"
    assert curl(f"http://{served.address}/flamegraph?target={job.pid}&seconds=0.3&idle").rstrip().endswith("</svg>")
    assert json.loads(curl("--unix-socket", os.path.relpath(served.folder / "probing-serve/socket"),
                           "http://localhost/api/v1/targets"))
