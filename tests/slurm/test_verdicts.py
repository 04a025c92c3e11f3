"""The cached verdict of a node, and the folder of root's that it lies in."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.errors import WorldError
from preflight.model.finding import Finding, Part, Verdict
from preflight.slurm import files
from preflight.slurm.state import StateFolder
from preflight.slurm.verdicts import NodeVerdict, drop_verdict, mark_drained, read_verdict, write_verdict

NOW_S = 1_800_000_000.0
ROOT = Path(__file__).parents[2]


def verdict(**changes):
    bad = Finding(
        check="slow_part", subject="n1", verdict=Verdict.FAIL, observed="12 GB/s", blames=Part(kind="node", name="n1")
    )
    facts = {
        "node": "n1",
        "run_id": "scan-7",
        "verdict": Verdict.FAIL,
        "boot_id": "boot-1",
        "written_at_s": NOW_S - 60,
        "expires_at_s": NOW_S + 3600,
        "findings": (bad,),
    }
    return NodeVerdict(**{**facts, **changes})


def read(folder, *, boot_id="boot-1", now_s=NOW_S, node="n1"):
    return read_verdict(str(folder), node, boot_id=boot_id, now_s=now_s)


def test_a_verdict_that_was_written_is_read(tmp_path):
    write_verdict(str(tmp_path / "state"), verdict())
    assert read(tmp_path / "state") == (verdict(), "")
    file = tmp_path / "state/verdicts/n1.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_where_there_is_none_nothing_is_said(tmp_path):
    assert read(tmp_path / "state") == (None, "")


@pytest.mark.parametrize(
    ("found", "asked", "words"),
    [
        ({}, {"boot_id": "boot-2"}, "booted"),
        ({}, {"boot_id": None}, "which boot"),
        ({}, {"now_s": NOW_S + 3601}, "expired"),
        ({}, {"now_s": NOW_S - 3600}, "future"),
        ({"node": "n2"}, {}, "about n2"),
    ],
)
def test_one_that_does_not_count_is_passed_over_with_the_reason(tmp_path, found, asked, words):
    with StateFolder(str(tmp_path), "verdicts") as folder:
        from preflight.model.base import to_json

        folder.write("n1.json", to_json(verdict(**found)))
    said = read(tmp_path, **asked)
    assert said[0] is None
    assert words in said[1]


def test_one_for_which_the_node_was_drained_is_marked_and_can_be_dropped(tmp_path):
    write_verdict(str(tmp_path), verdict())
    mark_drained(str(tmp_path), verdict(), now_s=NOW_S)
    found, _ = read(tmp_path)
    assert found is not None
    assert (found.drained, found.drained_at_s) == (True, NOW_S)
    drop_verdict(str(tmp_path), "n1")
    drop_verdict(str(tmp_path), "n1")
    assert read(tmp_path) == (None, "")


@given(data=st.binary(max_size=200))
def test_no_content_breaks_the_reading(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("state")
    with StateFolder(str(folder), "verdicts") as inside:
        inside.write("n1.json", data)
    found, why = read(folder)
    assert found is None
    assert why


@pytest.mark.parametrize("node", ["../n1", "n1/x", "", ".x", "n1\n"])
def test_a_name_that_is_no_nodes_reaches_no_file(tmp_path, node):
    with pytest.raises(ValueError, match="no node's name"):
        write_verdict(str(tmp_path), verdict(node=node))
    assert read(tmp_path, node=node)[0] is None


def test_a_link_in_the_place_of_a_verdict_is_not_followed(tmp_path):
    write_verdict(str(tmp_path / "other"), verdict())
    (tmp_path / "state/verdicts").mkdir(parents=True)
    (tmp_path / "state/verdicts/n1.json").symlink_to(tmp_path / "other/verdicts/n1.json")
    found, why = read(tmp_path / "state")
    assert found is None
    assert "can't be read" in why


def test_a_pipe_in_the_place_of_a_verdict_holds_nobody(tmp_path):
    (tmp_path / "verdicts").mkdir(mode=0o700)
    os.mkfifo(tmp_path / "verdicts/n1.json", 0o600)
    assert read(tmp_path)[0] is None


def test_what_others_can_write_to_is_not_believed(tmp_path):
    write_verdict(str(tmp_path), verdict())
    (tmp_path / "verdicts/n1.json").chmod(0o666)
    assert "others can write" in read(tmp_path)[1]
    (tmp_path / "verdicts/n1.json").chmod(0o600)
    (tmp_path / "verdicts").chmod(0o777)
    assert "others can write" in read(tmp_path)[1]


@pytest.mark.root
def test_what_somebody_else_owns_is_not_believed(tmp_path):
    write_verdict(str(tmp_path), verdict())
    os.chown(tmp_path / "verdicts/n1.json", 1000, 1000)
    assert "belongs to user 1000" in read(tmp_path)[1]
    os.chown(tmp_path / "verdicts/n1.json", 0, 0)
    os.chown(tmp_path, 1000, 1000)
    assert "belongs to user 1000" in read(tmp_path)[1]


def test_a_folder_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "verdicts").symlink_to(tmp_path / "real")
    with pytest.raises(WorldError, match="state folder"):
        write_verdict(str(tmp_path), verdict())


def test_a_state_folder_that_can_not_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WorldError, match="state folder"):
        write_verdict(str(tmp_path / "file"), verdict())


def test_only_the_newest_files_are_kept(tmp_path):
    with StateFolder(str(tmp_path), "reports") as folder:
        for number in range(6):
            folder.write(f"node-{number}.json", b"x")
            os.utime(tmp_path / "reports" / f"node-{number}.json", (number, number))
        folder.write("health-1.json", b"x")
        stale = tmp_path / "reports" / f"{files.PARTIAL}1.x"
        stale.write_text("")
        os.utime(stale, (1, 1))
        folder.keep_newest(2, beginning="node-")
    assert {path.name for path in (tmp_path / "reports").iterdir()} == {"node-4.json", "node-5.json", "health-1.json"}


def test_a_file_is_whole_or_not_there_also_without_nameless_files(tmp_path, monkeypatch):
    real = os.open

    def without(path, flags, *rest, **named):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(95, "Operation not supported")
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(files.os, "open", without)
    with StateFolder(str(tmp_path), "reports") as folder:
        folder.write("a.json", b"one")
        folder.write("a.json", b"two")
        assert folder.read("a.json") == b"two"
    assert [path.name for path in (tmp_path / "reports").iterdir()] == ["a.json"]


def test_a_full_disk_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch):
    with StateFolder(str(tmp_path), "reports") as folder:
        folder.write("a.json", b"one")
        monkeypatch.setattr(files.os, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(WorldError, match="No space left"):
            folder.write("a.json", b"two")
        assert folder.read("a.json") == b"one"
    assert [path.name for path in (tmp_path / "reports").iterdir()] == ["a.json"]


def test_a_lock_is_held_by_one_and_ends_with_its_process(tmp_path):
    code = (
        "import sys\nfrom preflight.slurm.state import StateFolder\n"
        "with StateFolder(sys.argv[1]) as folder, folder.lock('x.lock') as alone:\n"
        "    print(alone, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "True\n"
        with StateFolder(str(tmp_path)) as folder, folder.lock("x.lock") as alone:
            assert not alone
        holder.kill()
        holder.wait()
    with StateFolder(str(tmp_path)) as folder, folder.lock("x.lock") as alone:
        assert alone


def test_a_file_system_without_locks_is_no_other_process_at_work(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        StateFolder(str(tmp_path)) as folder,
        pytest.raises(WorldError, match="No locks available"),
        folder.lock("x.lock"),
    ):
        pass
