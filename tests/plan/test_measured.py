"""What ranks say of themselves becomes a placement, or is refused with the first rank that is wrong."""

import msgspec
import pytest

from preflight.errors import ConfigError
from preflight.model import Launch, RankFacts, compare_placements
from preflight.plan.measured import DOMAIN_SOURCE, measured_placement, predict_for, read_ranks
from tests.builders import make_job


def facts(size=8, per_node=4, **of_rank):
    """Block placement; `of_rank`: what is different on some ranks, "r3" -> changes."""
    made = [
        RankFacts(
            rank=rank,
            world_size=size,
            local_rank=rank % per_node,
            host=f"n{rank // per_node}",
            boot_id=f"boot{rank // per_node}",
        )
        for rank in range(size)
    ]
    return [msgspec.structs.replace(one, **of_rank.get(f"r{one.rank}", {})) for one in made]


def changed(**changes):
    return [msgspec.structs.replace(one, **changes) for one in facts()]


def write(path, lines):
    path.write_bytes(b"".join(line if isinstance(line, bytes) else msgspec.json.encode(line) + b"\n" for line in lines))
    return path


def test_ranks_in_any_order_form_the_placement_they_are_in():
    placement = measured_placement(facts()[::-1])
    assert (placement.source, placement.method) == ("measured", "as each rank says")
    assert placement.nodes == ("n0", "n1")
    assert placement.node_ranks == (0, 0, 0, 0, 1, 1, 1, 1)
    assert placement.local_ranks == (0, 1, 2, 3) * 2
    assert placement.gpu_uuids is None
    assert placement.domains is None


def test_containers_of_one_machine_are_one_node_and_namesakes_are_two():
    pods = [msgspec.structs.replace(one, host=f"pod-{one.rank}") for one in facts()]
    assert measured_placement(pods).nodes == ("pod-0", "pod-4")
    twins = measured_placement([msgspec.structs.replace(one, host="localhost") for one in facts()])
    assert twins.nodes == ("localhost@boot0", "localhost@boot1")
    assert twins.node_ranks == (0, 0, 0, 0, 1, 1, 1, 1)


def test_without_boot_ids_the_host_name_counts_and_a_rank_that_lacks_one_joins_its_namesakes():
    assert measured_placement(changed(boot_id=None)).nodes == ("n0", "n1")
    assert measured_placement(facts(r2={"boot_id": None})).node_ranks == (0, 0, 0, 0, 1, 1, 1, 1)


def test_the_name_that_the_scheduler_uses_is_taken():
    assert measured_placement([msgspec.structs.replace(one, node=f"c{one.host}") for one in facts()]).nodes == (
        "cn0",
        "cn1",
    )


def test_local_ranks_that_nobody_told_or_that_collide_are_counted_and_the_method_says_so():
    counted = measured_placement(changed(local_rank=None))
    assert (counted.local_ranks, counted.method) == (
        (0, 1, 2, 3) * 2,
        "as each rank says, local ranks counted on 2 nodes",
    )
    collided = measured_placement(facts(r1={"local_rank": 0}))
    assert (collided.local_ranks[:4], collided.method) == (
        (0, 1, 2, 3),
        "as each rank says, local ranks counted on 1 node",
    )


def test_gpus_and_domains_are_kept_as_far_as_they_are_known():
    placement = measured_placement(
        facts(r0={"gpu_uuid": "GPU-a", "domain": "x.1"}, r5={"domain": "x.2"}, r6={"domain": "x.3"})
    )
    assert placement.gpu_uuids == ("GPU-a", *(None,) * 7)
    assert placement.domains == ("x.1", None)  # the second node's GPUs are in two
    assert placement.domain_source == DOMAIN_SOURCE


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (lambda: facts()[:7], "rank 7 of 8 did not say where it is (missing: 7)"),
        (lambda: [one for one in facts() if one.rank not in (2, 3, 6)], "rank 2 and 2 more of 8"),
        (lambda: [*facts(), facts()[3]], "rank 3 is there twice, on n0 and on n0"),
        (lambda: facts(r7={"world_size": 16}), "rank 7 on n1 says there are 16 ranks, rank 0 on n0 says 8"),
        (lambda: facts(r3={"rank": 9}), "rank 9 on n0 is none of 8 ranks"),
        (lambda: [msgspec.structs.replace(one, world_size=None) for one in facts() if one.rank != 4], "rank 4 of 8"),
        (lambda: facts(r3={"local_rank": -1}), "rank 3 on n0 says that it is number -1 on its node"),
        (lambda: facts(r3={"local_rank": 2**40}), "rank 3 on n0 says that it is number 1099511627776 on its node"),
        (lambda: [RankFacts(rank=2**21, host="n")], "did not say"),
        (lambda: [RankFacts(rank=0, host="n", world_size=2**30)], "more than"),
    ],
)
def test_missing_double_and_contradicting_ranks_are_refused_by_name(bad, words):
    with pytest.raises(ConfigError) as caught:
        measured_placement(bad(), source="ranks.jsonl")
    assert "ranks.jsonl" in str(caught.value)
    assert words in str(caught.value)


def test_a_file_of_lines_is_read_with_what_launchers_put_around_them(tmp_path):
    lines = [msgspec.json.encode(one) for one in facts()]
    noise = [
        b"Loading module cuda/12\n",
        b"3: " + lines[3] + b"\r\n",
        b"[1,5]<stdout>:" + lines[5] + b"\n",
        b'{"other": 1}\n',
    ]
    rest = [line + b"\n" for number, line in enumerate(lines) if number not in (3, 5)]
    assert list(read_ranks(write(tmp_path / "ranks.jsonl", [*noise, *rest]))) == facts()


def test_a_folder_of_files_is_read_and_hidden_ones_are_passed_over(tmp_path):
    for one in facts():
        write(tmp_path / f"rank-{one.rank:06d}.json", [one])
    write(tmp_path / ".rank-000001.json.x8", [b"{half"])
    assert list(read_ranks(tmp_path)) == facts()


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "holds no rank"),
        ([b"hello\n"], "holds no rank"),
        ([b'{"schema":"preflight.rank/1","rank":0,"ho'], "line 1 is not what one rank wrote"),
        ([b'\n{"schema":"preflight.rank/1","rank":"a","host":"n"}'], "line 2 is not what one rank wrote"),
        ([b'{"schema":"preflight.rank/1","rank":0,"host":"\xff"}'], "line 1"),
    ],
)
def test_a_file_that_is_none_is_refused_with_the_line(tmp_path, lines, words):
    with pytest.raises(ConfigError) as caught:
        read_ranks(write(tmp_path / "ranks.jsonl", lines))
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["x" * 300, "x/" * 3000, "file/inside", "loop"])
def test_a_path_that_can_not_be_followed_is_refused_by_name(tmp_path, name):
    write(tmp_path / "file", [])
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ConfigError, match="can't be read") as caught:
        read_ranks(tmp_path / name)
    assert name.rstrip("/") in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="can't be read"):
        read_ranks(tmp_path / "none")


def test_the_expected_placement_is_made_on_the_nodes_that_were_found():
    measured = measured_placement(facts())
    job = make_job(tp=4, dp=2, nodes=None, gpus_per_node=None, launch={"launcher": "slurm", "distribution": "cyclic"})
    assert predict_for(msgspec.structs.replace(job, launch=Launch()), measured) is None
    assert compare_placements(predict_for(job, measured), measured).rank == 1
    block = msgspec.structs.replace(job, launch=Launch(launcher="slurm", distribution="block"))
    assert compare_placements(predict_for(block, measured), measured) is None
    elsewhere = msgspec.structs.replace(
        block, launch=Launch(launcher="slurm", distribution="block", hosts=("n1", "n0"))
    )
    assert compare_placements(predict_for(elsewhere, measured), measured).rank == 0
