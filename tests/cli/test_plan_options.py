"""`preflight plan` with its options: where ranks sit, what to change, what changes if another plan is taken, what a run measured."""

import json
from pathlib import Path

import msgspec
import pytest

from preflight.cli.main import run_command_line
from preflight.model import RankFacts
from preflight.plan.planfile import read_job

PLANS = Path(__file__).parents[2] / "deploy" / "plans"
LLAMA = PLANS / "llama3-70b-64gpu.toml"
SHAPE_ONLY = """
[model]
layers = 80
hidden_size = 8192
ffn_size = 28672
attention_heads = 64
kv_heads = 8
vocab_size = 128256
[training]
global_batch_size = 64
seq_length = 4096
[hardware]
nodes = 8
gpus_per_node = 8
gpu = "H100-80GB"
"""


@pytest.fixture
def plan(capsys):
    """Runs `preflight plan` with these arguments: exit code, stdout, stderr."""

    def run(*arguments: object):
        code = run_command_line(["plan", *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def plan_json(plan):
    """The same, decoded: exit code, document."""

    def run(*arguments: object):
        code, out, err = plan(*arguments, "--format", "json")
        assert err == ""
        return code, json.loads(out)

    return run


def failed(document):
    return [finding for finding in document["findings"] if finding["verdict"] == "FAIL"]


class TestTheCyclicAccident:
    def test_it_is_refused_with_the_group_its_hosts_its_bytes_and_its_seconds(self, plan_json):
        code, document = plan_json(LLAMA, "--distribution", "cyclic")
        first = failed(document)[0]
        assert (code, document["answer"]) == (10, "no-go")
        assert {finding["check"] for finding in failed(document)} == {"tp_in_nvlink_domain"}
        assert (first["subject"], first["blames"]["name"]) == ("tp0", "launch.distribution")
        for part in ("ranks 0-7 on 8 nodes, gpu[01-08]", "per step cross", "outside a domain", "inside"):
            assert part in first["observed"]
        assert "--distribution=block" in first["remedy"]

    def test_the_advice_is_the_flag_and_with_the_flag_the_answer_is_go(self, plan_json):
        _, document = plan_json(LLAMA, "--distribution", "cyclic", "--advise")
        best = document["advice"][0]
        assert [change["paste"] for change in best["changes"]] == ["srun --distribution=block"]
        assert best["complete"]
        assert (best["before"]["fail"], best["after"].get("fail", 0)) == (8, 0)
        code, document = plan_json(LLAMA, "--distribution", "block")
        assert (code, document["answer"]) == (0, "go")

    def test_a_healthy_placement_gets_no_advice(self, plan):
        code, out, _ = plan(LLAMA, "--advise")
        assert code == 0
        assert "srun" not in out

    def test_from_block_to_cyclic_the_difference_is_eaten_by_tensor_parallel_communication(self, plan_json, tmp_path):
        cyclic = tmp_path / "cyclic.toml"
        cyclic.write_text(LLAMA.read_text().replace('distribution = "block"', 'distribution = "cyclic"'))
        _, document = plan_json(cyclic, "--compare", LLAMA)
        assert document["comparison"]["culprit"] == "tp"
        assert document["comparison"]["speedup"] < 0.6


class TestWhereRanksSit:
    def test_hosts_on_the_command_line_are_the_nodes_in_that_order(self, plan_json):
        _, document = plan_json(LLAMA, "--hosts", "r1n[1-4],r2n[1-4]")
        assert document["placement"]["nodes"] == "r1n[1-4],r2n[1-4]"

    @pytest.mark.parametrize("hosts", ["n[1-", "n[4-1]", ",", "n[1-9999999999]"])
    def test_hosts_that_are_no_list_are_wrong_usage(self, plan, hosts):
        code, _, err = plan(LLAMA, "--hosts", hosts)
        assert code == 64
        assert err.startswith("preflight: --hosts: ")

    def test_another_number_of_hosts_than_the_plan_says_is_refused(self, plan):
        code, _, err = plan(LLAMA, "--hosts", "n[1-4]")
        assert code == 78
        assert "hardware.nodes: 8, but 4 found (n[1-4])" in err

    def test_torchrun_sorts_unpadded_names_as_text_and_the_plan_says_so(self, plan_json):
        _, document = plan_json(LLAMA, "--launcher", "torchrun", "--rendezvous", "c10d", "--hosts", "gpu-[5-12]")
        [names] = [finding for finding in document["findings"] if finding["check"] == "host_names"]
        assert names["verdict"] == "WARN"
        assert "gpu-10" in names["observed"]

    def test_a_topology_file_gives_leaves_and_is_named_when_it_is_broken(self, plan_json, plan, tmp_path):
        file = tmp_path / "topology.conf"
        file.write_text("SwitchName=leaf1 Nodes=gpu[01-04]\nSwitchName=leaf2 Nodes=gpu[05-08]\n")
        _, document = plan_json(LLAMA, "--topology", file)
        assert "leaf_spread" in {f["check"] for f in document["findings"] if f["verdict"] in {"PASS", "WARN"}}
        file.write_text("SwitchName=leaf1 Nodes=gpu[01-\n")
        code, _, err = plan(LLAMA, "--topology", file)
        assert code == 78
        assert str(file) in err

    def test_ranks_that_were_measured_go_before_what_was_predicted(self, plan_json, tmp_path):
        ranks = [
            RankFacts(rank=i, world_size=64, local_rank=i // 8, host=f"gpu{i % 8 + 1:02}", boot_id=f"b{i % 8}")
            for i in range(64)
        ]
        file = tmp_path / "ranks.jsonl"
        file.write_bytes(b"".join(msgspec.json.encode(rank) + b"\n" for rank in ranks))
        code, document = plan_json(LLAMA, "--ranks", file)
        assert code == 10
        assert document["placement"]["source"] == "measured"
        [match] = [finding for finding in document["findings"] if finding["check"] == "ranks_match"]
        assert match["verdict"] == "FAIL"
        assert "rank 1" in match["observed"]

    def test_a_file_of_ranks_that_is_none_is_refused(self, plan, tmp_path):
        file = tmp_path / "ranks.jsonl"
        file.write_text("hello\n")
        code, _, err = plan(LLAMA, "--ranks", file)
        assert code == 78
        assert str(file) in err


class TestLayouts:
    def test_a_plan_without_degrees_gets_a_ranked_list_and_the_best_is_judged(self, plan_json, tmp_path):
        path = tmp_path / "open.toml"
        path.write_text(SHAPE_ONLY)
        code, document = plan_json(path, "--advise")
        layouts = document["layouts"]
        assert code == 0
        assert len(layouts) > 1
        assert all(layout["why_behind"] for layout in layouts[1:])
        assert document["degrees"]["tp"] == layouts[0]["degrees"]["tp"] <= 8
        assert document["estimate"]["memory"]["total_bytes"] < document["estimate"]["gpu_memory_bytes"]
        fitting = [layout["tokens_per_s"] for layout in layouts if layout["fits"] and not any(layout["tally"].values())]
        assert len(fitting) > 1
        assert fitting == sorted(fitting, reverse=True)

    def test_without_advise_a_plan_without_parallel_is_refused(self, plan, tmp_path):
        path = tmp_path / "open.toml"
        path.write_text(SHAPE_ONLY)
        code, _, err = plan(path)
        assert code == 78
        assert "parallel: is missing" in err


class TestMeasured:
    def test_a_measured_step_names_the_term_that_would_explain_it(self, plan_json):
        _, document = plan_json(LLAMA, "--measured-step-time", "10s")
        gap = document["measured_step_time"]
        assert gap["suspects"][0]["term"] == "tp"
        assert gap["suspects"][0]["plausible"]

    def test_measured_memory_is_set_beside_the_lines(self, plan):
        code, out, _ = plan(LLAMA, "--measured-memory", "total=60GB,activations=20GB")
        assert code == 0
        assert "Memory, estimated and measured" in out
        assert "20.0 GB" in out

    @pytest.mark.parametrize(
        "arguments",
        [
            ("--measured-memory", "lots"),
            ("--measured-memory", "weights=3GB"),
            ("--measured-memory", "total=3GB,total=4GB"),
            ("--measured-step-time", "soon"),
            ("--measured-step-time", "0s"),
            ("--advise-dir", "x"),
            ("--save", "x"),
        ],
    )
    def test_values_that_mean_nothing_are_wrong_usage(self, plan, arguments):
        code, _, err = plan(LLAMA, *arguments)
        assert code == 64
        assert err.startswith("preflight: --")

    @pytest.mark.parametrize(
        "arguments", [("--measured-step-time", "10s"), ("--measured-memory", "10GB"), ("--compare", LLAMA)]
    )
    def test_a_plan_that_says_too_little_for_it_is_refused_with_what_it_lacks(self, plan, arguments):
        code, _, err = plan(PLANS / "dense-70b-64gpu.toml", *arguments)
        assert code == 78
        assert "ffn_size" in err


class TestImport:
    SCRIPT = """#!/bin/bash
#SBATCH --nodes=8
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=8
TP=8
PP=4
srun python pretrain_gpt.py --tensor-model-parallel-size $TP --pipeline-model-parallel-size ${PP} \\
  --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 --seq-length 4096 \\
  --micro-batch-size 1 --global-batch-size 64 --bf16 --swiglu --vocab-size 128256
"""

    def test_a_script_becomes_a_plan_with_the_origin_of_each_value(self, plan_json, tmp_path):
        script, saved = tmp_path / "train.sh", tmp_path / "job.toml"
        script.write_text(self.SCRIPT)
        _, document = plan_json("--from", script, "--save", saved)
        assert {axis: document["degrees"][axis] for axis in ("tp", "dp", "pp")} == {"tp": 8, "dp": 2, "pp": 4}
        assert document["groups"]["embedding"][0] == [0, 48]  # Megatron ties embeddings unless it is told not to
        assert "--tensor-model-parallel-size 8" in document["imported"]["origins"]["parallel.tp"]
        assert read_job(saved).parallel.pp == 4

    def test_two_files_that_contradict_each_other_are_refused_with_both_places(self, plan, tmp_path):
        one, two = tmp_path / "one.sh", tmp_path / "two.sh"
        one.write_text(self.SCRIPT)
        two.write_text(self.SCRIPT.replace("TP=8", "TP=4"))
        code, _, err = plan("--from", one, "--from", two)
        assert code == 78
        assert "one.sh" in err
        assert "two.sh" in err

    def test_a_plan_and_an_import_at_once_or_neither_is_wrong_usage(self, plan, tmp_path):
        assert plan()[0] == 64
        assert plan(LLAMA, "--from", LLAMA)[0] == 64


def test_the_fingerprint_stands_in_the_document_and_changes_with_a_degree(plan_json, tmp_path):
    other = tmp_path / "other.toml"
    other.write_text(LLAMA.read_text().replace("tp = 8", "tp = 4").replace("dp = 2", "dp = 4"))
    prints = [plan_json(path)[1]["fingerprint"] for path in (LLAMA, LLAMA, other)]
    assert prints[0] == prints[1] != prints[2]


TORCHTITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
tensor_parallel_degree = 8
data_parallel_shard_degree = -1
[activation_checkpoint]
mode = "full"
"""
LOGGED = {
    "num_layers": 80,
    "hidden_size": 8192,
    "ffn_hidden_size": 28672,
    "num_attention_heads": 64,
    "padded_vocab_size": 128256,
    "tensor_model_parallel_size": 8,
    "pipeline_model_parallel_size": 4,
    "micro_batch_size": 1,
    "global_batch_size": 64,
    "seq_length": 4096,
    "world_size": 64,
}
NODES = ("--nodes", 4, "--gpus-per-node", 8, "--gpu", "H100-80GB")


class TestWhatNoImportedFileSays:
    @pytest.fixture
    def titan(self, tmp_path):
        path = tmp_path / "titan.toml"
        path.write_text(TORCHTITAN)
        return path

    def test_a_file_without_nodes_is_refused_with_the_option_that_says_them(self, plan, titan):
        code, _, err = plan("--from", titan)
        assert code == 78
        assert "preflight plan` --nodes" in err

    def test_a_script_that_leaves_the_vocabulary_to_the_tokenizer_is_told_where_to_write_it(self, plan, tmp_path):
        script, rest = tmp_path / "job.sh", tmp_path / "rest.toml"
        script.write_text(
            "#!/bin/bash\n#SBATCH --nodes=2\nsrun --ntasks-per-node=8 python pretrain_gpt.py --num-layers 8 --hidden-size 64"
            " --num-attention-heads 8 --tensor-model-parallel-size 2\n"
        )
        code, _, err = plan("--from", script)
        assert code == 78
        assert "vocab_size" in err
        assert "one more --from" in err
        rest.write_text("[model]\nvocab_size = 1000\n")
        code, out, _ = plan("--from", script, "--from", rest)
        assert "16 ranks on 2 nodes" in out

    def test_a_file_that_a_script_reads_and_nobody_gave_is_named_where_something_is_missing(self, plan, tmp_path):
        script = tmp_path / "job.sh"
        script.write_text(
            "#!/bin/bash\naccelerate launch --config_file fsdp.yaml --num_machines 2 --num_processes 16 train.py\n"
        )
        code, _, err = plan("--from", script)
        assert code == 78
        assert "fsdp.yaml: that file was not given" in err

    def test_the_command_line_says_nodes_and_gpus_and_is_shown_as_their_origin(self, plan_json, titan):
        code, document = plan_json("--from", titan, *NODES)
        assert (code, document["world_size"], document["degrees"]["dp_shard"]) == (0, 32, 4)
        assert document["imported"]["origins"]["hardware.nodes"] == "command line --nodes 4"

    def test_what_the_command_line_says_is_saved_too(self, plan_json, titan, tmp_path):
        saved = tmp_path / "job.toml"
        hosts = ("--launcher", "slurm", "--hosts", "n[1-4]", "--distribution", "block")
        _, imported = plan_json("--from", titan, *NODES, *hosts, "--save", saved)
        _, again = plan_json(saved)
        assert again["fingerprint"] == imported["fingerprint"]
        assert again["placement"]["nodes"] == "n[1-4]"

    def test_a_plan_file_with_hardware_alone_may_be_one_of_the_files(self, plan_json, titan, tmp_path):
        rest = tmp_path / "cluster.toml"
        rest.write_text('[hardware]\nnodes = 4\ngpus_per_node = 8\ngpu = "H100-80GB"\n')
        _, document = plan_json("--from", titan, "--from", rest)
        assert document["world_size"] == 32

    def test_nodes_follow_from_a_log_s_world_size_and_gpus_per_node_of_the_command_line(self, plan_json, tmp_path):
        log = tmp_path / "train.log"
        log.write_text(
            "------------------------ arguments ------------------------\n"
            + "".join(f"  {name} {'.' * 20} {value}\n" for name, value in LOGGED.items())
            + "-------------------- end of arguments ---------------------\n"
        )
        _, document = plan_json("--from", log, "--gpus-per-node", 8)
        assert (document["world_size"], document["placement"]["num_nodes"]) == (64, 8)
        assert "command line" in document["imported"]["origins"]["hardware.nodes"]

    def test_a_model_s_shape_alone_is_no_layout(self, plan, plan_json, tmp_path):
        shape = tmp_path / "config.json"
        shape.write_text(
            '{"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "vocab_size": 32000}'
        )
        code, _, err = plan("--from", shape, *NODES)
        assert code == 78
        assert "--advise" in err
        code, document = plan_json("--from", shape, *NODES, "--advise")
        assert (code, len(document["layouts"]) > 0) == (0, True)

    def test_a_path_in_such_a_file_begins_at_the_file(self, plan_json, titan, tmp_path):
        folder = tmp_path / "cluster"
        folder.mkdir()
        (folder / "nodes.txt").write_text("node leaf\nn1 a\nn2 a\nn3 b\nn4 b\n")
        (folder / "cluster.toml").write_text(
            '[hardware]\nnodes = 4\ngpus_per_node = 8\n[launch]\nhosts = "n[1-4]"\ntopology = "nodes.txt"\n'
        )
        _, document = plan_json("--from", titan, "--from", folder / "cluster.toml")
        assert document["placement"]["nodes"] == "n[1-4]"

    def test_another_launcher_drops_what_only_the_file_s_own_one_knows(self, plan_json, tmp_path):
        script = tmp_path / "job.sbatch"
        script.write_text(
            "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\n#SBATCH --distribution=cyclic\n#SBATCH --nodelist=n[1-2]\n"
            "srun python pretrain_gpt.py --num-layers 8 --hidden-size 64 --num-attention-heads 8 --vocab-size 1000 --tensor-model-parallel-size 2\n"
        )
        _, document = plan_json("--from", script)
        assert document["placement"]["method"] == "slurm cyclic"
        _, document = plan_json("--from", script, "--launcher", "torchrun")
        assert "launch.distribution" not in document["imported"]["origins"]
        assert document["placement"]["nodes"] == "n[1-2]"

    def test_nodes_of_the_command_line_go_before_those_of_a_plan_file(self, plan_json):
        _, document = plan_json(PLANS / "dense-70b-64gpu.toml", "--nodes", 4, "--gpus-per-node", 16)
        assert (document["placement"]["num_nodes"], document["world_size"]) == (4, 64)


def test_a_bad_placement_points_to_the_advice_and_a_good_one_or_the_advice_itself_does_not(plan):
    hint = "smallest change that mends the placement: --advise"
    shown = plan(LLAMA, "--distribution", "cyclic")[1]
    assert hint in shown
    assert shown.splitlines()[-1].startswith("no-go: ")  # the answer stays the last line
    assert hint not in plan(LLAMA, "--distribution", "cyclic", "--advise")[1]
    assert hint not in plan(LLAMA)[1]
