"""The roots are what the tests over containers take them for: another root, another pid namespace, another libc."""
import os

import pytest
import roots


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name, program", [(name, program) for name in roots.INTERPRETERS
                                           for program in roots.INTERPRETERS[name]])
def test_a_process_in_a_root_is_apart_from_us(name, program):
    code = "import os, platform, time; print('I am', os.getpid(), platform.libc_ver()[1]); time.sleep(60)"
    with roots.start(name, program, "-c", code) as target:
        target.wait_for("I am 1 ")
        assert os.readlink(f"/proc/{target.pid}/ns/pid") != os.readlink("/proc/self/ns/pid")
        assert os.readlink(f"/proc/{target.pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt")
        assert os.path.samefile(f"/proc/{target.pid}/root", target.root)
        if name == "bullseye":
            assert "2.31" in target.output
        pid = target.pid
    assert not os.path.exists(f"/proc/{pid}"), "the process outlived its block"
