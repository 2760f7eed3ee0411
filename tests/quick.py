"""What `make check` runs, of each part of the program some, in under two minutes on two cores: read by
tests/conftest.py, which marks the tests, and by scripts/test.py, which has pytest import these files alone."""

# Unit tests that are left out: they try for many seconds what goes wrong rarely.
LONG_UNITS = {"table_clock", "table_interrupt", "table_kill", "table_retire", "table_scribble", "table_step",
              "table_threads"}

# Integration tests: file, and words of which a test's name has one, "" for all of them.
INTEGRATION = {
    "test_agent": ["description", "exec_starts", "forked_child", "lost_run_directory", "without_python"],
    "test_backtrace": ["connection", "container", "stopped", "locals", "odd_rank", "tasks_and", "threads_functions",
                       "waits_of"],
    "test_break": ["refused"],
    "test_cli": ["a_table", "all", "error", "every", "forked", "letters", "launcher", "man_page", "odd", "rows",
                 "target", "there_are"],
    "test_completions": [""],
    "test_config": ["defaults", "manual", "running", "wrong"],
    "test_core": ["core"],
    "test_eval": ["assignments", "ctrl_c", "exceptions", "execute", "every_interpreter", "globals", "values"],
    "test_inject_refused": ["dumpable", "kernel_thread", "no_such", "not_the_owner", "the_doctor", "refuses_a_memfd",
                            "zombie"],
    "test_memory": ["as_python_says", "as_the_kernel_says", "without_a_gpu"],
    "test_pause": ["let_go"],
    "test_profile": ["ctrl_c", "difference", "lines_are", "native_frames", "no_format", "pprof_holds", "svg"],
    "test_query": [""],
    "test_query_output": [""],
    "test_secrets": [""],
    "test_sql_escape": ["more_than_read", "product", "bytes"],
    "test_surroundings": ["runner", "signal"],
    "test_trace": ["depth_and"],
    "test_waits": ["a_python_lock", "owner"],
    "test_watch": ["refused"],
}


def chosen(file, name):
    """Whether the test of this name in this file (without .py) is one of them."""
    return any(word in name for word in INTEGRATION.get(file, ()))
