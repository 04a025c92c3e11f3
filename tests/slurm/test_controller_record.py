"""What the controller prolog keeps of each start of a job."""

import threading

import pytest

from preflight.errors import WorldError
from preflight.slurm.controller_record import REQUEUE, Decision, Record, Records

DECISION = Decision(course="drain", text="x", run_id="r", guilty={"n1": "preflight:xid GPU 1: bad"})


@pytest.fixture
def records(tmp_path):
    tmp_path.chmod(0o755)
    with Records(str(tmp_path / "state")) as kept:
        yield kept


def test_what_is_kept_is_read_again(records):
    assert records.read(7, 0) is None
    record = Record(job=7, restart=0, began_at_s=1.0, decision=DECISION, exit_code=REQUEUE, outcome="drained")
    records.keep(record)
    assert records.read(7, 0) == record
    assert records.read(7, 1) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"schema": "preflight.job/1"}', b"[" * 100_000])
def test_a_broken_record_is_none(records, content):
    records.folder.write("record-7-0.json", content)
    assert records.read(7, 0) is None


def test_the_record_of_another_job_under_this_ones_name_is_none(records):
    records.keep(Record(job=8, restart=0, began_at_s=1.0))
    records.folder.write("record-7-0.json", records.folder.read("record-8-0.json"))
    assert records.read(7, 0) is None


def test_own_requeues_are_counted_and_those_of_others_are_not(records):
    for restart, code in ((0, REQUEUE), (1, 0), (2, REQUEUE)):
        records.keep(Record(job=7, restart=restart, began_at_s=1.0, exit_code=code))
    assert [records.requeues(7, restart) for restart in range(4)] == [0, 1, 1, 2]


def test_a_restart_of_which_nothing_is_kept_counts_as_one_of_ours(records):
    assert records.requeues(7, 3) == 3
    assert records.requeues(7, 2**31) > 10


def test_two_starts_of_the_same_never_work_at_the_same_time(records):
    seen = []

    def second():
        with Records(str(records.folder.path.parent)) as mine, mine.alone(7, 0, 30) as got:
            seen.append(got)

    with records.alone(7, 0, 0) as got:
        assert got
        with records.alone(7, 0, 0.3) as again:
            assert not again
        with records.alone(7, 1, 0) as other:
            assert other
        waiting = threading.Thread(target=second)
        waiting.start()
    waiting.join(30)
    assert seen == [True]
    assert [path.name for path in records.folder.path.iterdir()] == []


def test_a_folder_that_others_can_write_to_is_refused(tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "jobs").mkdir()
    (tmp_path / "state" / "jobs").chmod(0o777)
    with pytest.raises(WorldError, match="others can write"):
        Records(str(tmp_path / "state"))


def test_a_start_whose_prolog_was_ended_in_the_middle_is_known_at_the_next(records):
    assert not records.was_cut(7, 0)
    assert not records.was_cut(7, 1)
    records.keep(Record(job=7, restart=0, began_at_s=1.0))
    records.keep(Record(job=7, restart=1, began_at_s=1.0, decision=DECISION))
    cut = Decision(course="unknown", text="x", cut=True)
    records.keep(Record(job=7, restart=2, began_at_s=1.0, decision=cut, exit_code=0))
    records.keep(Record(job=7, restart=3, began_at_s=1.0, decision=DECISION, exit_code=REQUEUE))
    assert [records.was_cut(7, restart) for restart in range(1, 6)] == [True, True, True, False, False]
