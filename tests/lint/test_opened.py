"""What a target names is opened in one place (remote/openin.h): with the rights of the target's user, no devices, no
pipes, no procfs.

Every other place that opens a file, in the processes that see a target's data, is listed here with the reason why no
target chose the path.
"""
import re

from source import files, text

OPENS = re.compile(r"(?<![\w.>\"'])(?:open|openat|open64|fopen|opendir|creat|freopen)\((?!\d)([^;]*?;)", re.S)
OURS = re.compile(r'^[^;]*"(?:/dev/(?:null|ptmx)|/proc[^%"]*|/|\.|\.\.)"')  # a path that stands there as it is
NOT_TOLD = {"agent", "table"}  # the agent is the target's; tables are made by descriptor

PROC, USER, OWN = ("a file of /proc that the kernel makes", "the person at the tool named it",
                   "a file of the tool or service itself")
BUNDLE = "below a folder of the tool's own; no part of a file becomes a link there"
THERE = {
    "src/ask/profiles.c": (1, USER), "src/ask/wait_peer.c": (1, PROC),
    "src/base/limits.c": (1, "the cgroup of the tool"), "src/base/procfs.c": (2, PROC),
    "src/base/replace.c": (2, USER),
    "src/base/zip.c": (3, USER + "; its parts below a folder of the tool"),
    "src/cluster/find_nodes.c": (1, USER), "src/cluster/archive_nodes.c": (1, USER),
    "src/cli/bundle/bundle_collect.c": (2, BUNDLE), "src/cli/bundle/bundle_folder.c": (3, BUNDLE),
    "src/cli/bundle/bundle_open.c": (2, USER + "; the tool's own folder"),
    "src/cli/bundle/bundle_page.c": (1, BUNDLE), "src/cli/bundle/bundle_read.c": (1, BUNDLE),
    "src/cli/bundle/bundle_rows.c": (1, PROC + ", and others with fixed names"),
    "src/cli/bundle/bundle_write.c": (1, BUNDLE),
    "src/cli/commands/cmd_archive.c": (1, USER), "src/cli/diff/diff_side.c": (1, BUNDLE),
    "src/cli/commands/cmd_eval.c": (1, USER), "src/cli/commands/cmd_query.c": (1, USER),
    "src/cli/line/line_history.c": (1, OWN),
    "src/cli/remote.c": (1, USER), "src/cluster/cluster_file.c": (3, OWN), "src/cluster/link/own_service.c": (3, OWN),
    "src/cluster/link/token.c": (1, USER),
    "src/control/rundir.c": (4, "runs of the user's own"),
    "src/diagnose/neighbours.c": (1, PROC),
    "src/diagnose/rule.c": (2, USER), "src/diagnose/skills/skill.c": (3, USER),
    "src/engine/archive/archive_commit.c": (4, "below an archive that the person named"),
    "src/engine/archive/archive_count.c": (1, "below an archive"),
    "src/engine/archive/archive_files.c": (2, "an archive"),
    "src/engine/archive/archive_keep.c": (6, "below an archive"),
    "src/engine/archive/archive_list.c": (4, "below an archive"),
    "src/engine/archive/archive_merge.c": (2, "below an archive"),
    "src/engine/archive/archive_record.c": (2, "below an archive"),
    "src/engine/archive/archive_record_open.c": (2, "an archive"), "src/engine/caller/broker_slot.c": (1, OWN),
    "src/engine/caller/live.c": (3, "a table of the tool's own"), "src/engine/caller/live_audit.c": (2, OWN),
    "src/engine/caller/live_proc.c": (3, PROC + ", or the cgroup's folder"), "src/engine/worker/sandbox.c": (1, OWN),
    "src/engine/worker/sandbox_files.c": (2, OWN),
    "src/engine/writer/parquet.c": (1, USER), "src/inject/clear.c": (1, PROC), "src/inject/doctor.c": (2, PROC),
    "src/inject/find.c": (1, PROC),
    "src/inject/image.c": (1, PROC), "src/inject/place.c": (6, "the installation; fixed folders, a descriptor with the "
                                                               "tool's name and a folder that it made"),
    "src/inject/seccomp.c": (2, PROC), "src/inject/session.c": (
        2, PROC + "; a descriptor by O_PATH, reopened by openin"),
    "src/profile/store_dir.c": (2, "a run of the tool's own"), "src/profile/store_read.c": (1, "a folder"),
    "src/remote/core.c": (1, USER + ", reopened by openin"),
    "src/remote/interrupted.c": (2, PROC), "src/remote/mem.c": (1, PROC), "src/remote/moment.c": (1, PROC),
    "src/remote/openin.c": (4, "the place itself"),
    "src/remote/runs.c": (2, "runs by O_PATH, reopened by openin; the root of the target"),
    "src/remote/source.c": (2, PROC),
    "src/remote/tables.c": (1, "a descriptor that is a regular file"), "src/remote/threads.c": (2, PROC),
    "src/remote/trace.c": (1, PROC), "src/remote/transfer.c": (1, PROC), "src/remote/transfer_code.c": (2, PROC),
    "src/remote/named.c": (2, PROC), "src/serve/credentials.c": (1, OWN), "src/serve/audit.c": (1, OWN),
    "src/serve/command.c": (2, OWN), "src/serve/fixed.c": (1, OWN), "src/serve/home.c": (8, OWN),
    "src/serve/jobs_child.c": (1, OWN), "src/serve/main.c": (1, OWN), "src/serve/page.c": (1, OWN),
}


def opens_of(content):
    plain = re.sub(r"/\*.*?\*/", "", content, flags=re.S)
    return [match[0].split("\n")[0] for match in OPENS.finditer(plain) if not OURS.search(match[1])
            and '\\n"' not in match[0]]


def test_no_other_place_opens_what_a_target_names():
    sources = [path for path in files("src/*.c") if path.parts[1] not in NOT_TOLD]
    assert len(sources) > 100
    found = {str(path): opens_of(text(path)) for path in sources}
    wrong = [f"{path}: opens {len(opens)} files, {THERE.get(path, (0,))[0]} are known: {opens}"
             for path, opens in found.items()
             if len(opens) != THERE.get(path, (0,))[0]]
    assert not wrong, ("use pb_open_named or pb_named_root_file (remote/), or say in THERE why no target "
                       "chose the path:\n") + "\n".join(wrong)
    assert set(THERE) <= set(found), set(THERE) - set(found)


def test_an_open_is_noticed():
    assert len(opens_of('int fd = open(name, O_RDONLY);\nFILE *f = fopen(t->path, "re");\n'
                        'DIR *d = opendir(path);')) == 3
    assert opens_of('int fd = open("/dev/null", O_RDONLY); /* open(2) */ r = pb_open_named(r, 1, path, 0);') == []
