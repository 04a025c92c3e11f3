"""Job scripts: what a person would read out of them, and what nobody could."""

import pytest

from preflight.errors import ConfigError
from preflight.plan.importers import plan_toml
from preflight.plan.layout import lay_out
from preflight.plan.planfile import job_of

MEGATRON = "torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 512 --num-attention-heads 8 --bf16"


def test_a_slurm_script_with_inline_deepspeed_json_gives_the_whole_plan(read):
    imported = read("large_lm.slurm")
    assert imported.document["parallel"] == {"framework": "deepspeed", "tp": 4, "pp": 12, "zero_stage": 1}
    assert imported.document["hardware"] == {"nodes": 48, "gpus_per_node": 8}
    assert imported.document["launch"] == {"launcher": "torchrun", "rendezvous": "c10d"}
    training = imported.document["training"]
    assert (training["micro_batch_size"], training["global_batch_size"], training["seq_length"]) == (2, 2048, 2048)
    assert (training["precision"], training["recompute"], training["gradient_bytes"]) == ("bf16", "full", 4)
    model = imported.document["model"]
    assert (model["layers"], model["hidden_size"], model["attention_heads"]) == (70, 14336, 112)
    assert (model["ffn_size"], model["vocab_size"], model["positions"], model["gated_mlp"]) == (57344, 250880, 0, False)


def test_the_plan_of_that_script_lays_out_with_dp_8_and_counts_176_billion_weights(read):
    job = job_of(read("large_lm.slurm").document, "imported")
    degrees = lay_out(job, nodes=48, gpus_per_node=8, world_size=384).degrees
    assert (degrees["tp"], degrees["pp"], degrees["dp"]) == (4, 12, 8)
    assert job.model.parameters == pytest.approx(176.2e9, rel=0.01)


def test_a_value_is_traced_to_the_line_of_its_option_and_the_variable_in_it(read):
    origins = read("large_lm.slurm").origins
    assert origins["parallel.tp"].endswith("large_lm.slurm:107 --tensor-model-parallel-size 4 ($TP)")
    assert "stage 0" in origins["parallel.zero_stage"] or "--zero-stage 0" in origins["parallel.zero_stage"]
    assert "its state itself" in origins["parallel.zero_stage"]


def test_what_is_only_a_comment_or_another_command_has_no_say(values):
    said = values("large_lm.slurm")
    assert said["hardware.nodes"] == 48  # ##SBATCH --nodes=2 is a comment
    assert said["model.layers"] == 70  # so is the srun line with --num-layers 2


def test_ramped_batches_and_files_that_were_not_given_are_noted(read):
    notes = "\n".join(read("large_lm.slurm").notes)
    assert "rampup-batch-size 192 16 9_765_625" in notes
    assert "$WORKDIR/environment" in notes
    assert "\0" not in notes


def test_a_shell_script_with_arrays_arithmetic_and_branches_is_followed(read):
    said = read("pretrain.sh").document
    assert said["parallel"] == {
        "framework": "megatron",
        "tp": 8,
        "pp": 4,
        "cp": 2,
        "order": "tp-cp-ep-pp-dp",
        "sequence_parallel": True,
        "zero_stage": 1,
        "virtual_stages": 4,
    }
    assert said["training"]["global_batch_size"] == 128 // 8 // 4 * 32
    assert said["training"]["gradient_bytes"] == 4  # bf16, and EXTRA is not set
    assert said["launch"] == {"launcher": "torchrun", "rendezvous": "static", "master": "node001"}
    assert said["hardware"] == {"nodes": 16, "gpus_per_node": 8}
    assert said["model"]["kv_heads"] == 8
    job_of(said, "imported")


def test_defaults_of_variables_that_the_file_does_not_set_are_taken_and_said(read):
    assert any("$NUM_NODES is not set in the file" in note for note in read("pretrain.sh").notes)


def test_a_value_that_the_file_does_not_hold_is_left_out_and_no_default_takes_its_place(read):
    imported = read(job__sh=f"#!/bin/bash\n{MEGATRON} --tensor-model-parallel-size $TP_OF_THE_DAY\n")
    assert "tp" not in imported.document["parallel"]
    assert any("tensor-model-parallel-size: its value is not in the file" in note for note in imported.notes)
    assert read(job__sh=f"#!/bin/bash\n{MEGATRON}\n").document["parallel"]["tp"] == 1


def test_options_that_a_branch_may_add_get_no_default(read):
    branch = "if grep -q big /proc/cpuinfo; then MORE='--sequence-parallel --swiglu'; fi\n"
    imported = read(job__sh=f"#!/bin/bash\n{branch}{MEGATRON} $MORE --data-path $1\n")
    assert "sequence_parallel" not in imported.document["parallel"]
    assert "ffn_size" not in imported.document["model"]  # its default follows from --swiglu
    assert any("$MORE may add options, perhaps --sequence-parallel, --swiglu" in note for note in imported.notes)
    assert not any("$1 may add" in note for note in imported.notes)
    assert imported.document["training"]["precision"] == "bf16"  # --bf16 takes no value, so $MORE is none of it


def test_a_variable_behind_a_value_is_no_part_of_it(read):
    imported = read(job__sh=f"#!/bin/bash\n{MEGATRON} --seq-length 4096 $NOT_SET\n")
    assert imported.document["training"]["seq_length"] == 4096
    assert any("$NOT_SET may add options" in note for note in imported.notes)


def test_a_script_that_only_runs_another_one_says_so(read):
    imported = read(
        job__slurm="#!/bin/bash\n#SBATCH -N 2\nsrun bash -c 'docker run x /bin/bash -c \"TP=2 bash examples/train.sh 2>&1 | tee log\"'\n"
    )
    assert any("runs examples/train.sh" in note for note in imported.notes)
    assert imported.document["hardware"] == {"nodes": 2}


@pytest.mark.parametrize(
    "condition",
    [
        "grep -q x y",
        "! grep -q x y",
        "which torchrun > /dev/null",
        "OUT=$(hostname)",
        "[ -f /etc/x ]",
        "[ -d $X ] && [ 1 = 1 ]",
        "((RANDOM))",
    ],
)
def test_what_a_condition_of_the_machine_decides_is_unknown(values, condition):
    script = (
        f"#!/bin/bash\nTP=2\nif {condition}; then TP=4; else TP=8; fi\n{MEGATRON} --tensor-model-parallel-size $TP\n"
    )
    assert "parallel.tp" not in values(job__sh=script)


def test_the_output_of_a_command_is_unknown(read):
    imported = read(job__sh=f"#!/bin/bash\nTP=$(nvidia-smi -L | wc -l)\n{MEGATRON} --tensor-model-parallel-size $TP\n")
    assert "tp" not in imported.document["parallel"]


def test_a_variable_that_an_undecided_branch_sets_is_unknown(values):
    script = "#!/bin/bash\nTP=2\nif grep -q big /proc/cpuinfo; then TP=4; fi\nif [ $HOSTNAME = a ]; then TP=8; fi\n"
    assert "parallel.tp" not in values(job__sh=f"{script}{MEGATRON} --tensor-model-parallel-size $TP\n")


@pytest.mark.parametrize(
    ("script", "tp"),
    [
        ("A=8; if [ $A -gt 4 ]; then TP=4; else TP=2; fi", 4),
        ("A=3; if [ $A -gt 4 ]; then TP=4; elif [[ $A == 3 ]]; then TP=8; else TP=2; fi", 8),
        ("case 70B in 7B|8B) TP=1 ;; 70B) TP=8 ;; *) TP=2 ;; esac", 8),
        ("case x in 7B|8B) TP=1 ;; 70B) TP=8 ;; *) TP=2 ;; esac", 2),
        ("case 8B in 7B|8B) TP=1 ;; *) TP=2 ;; esac", 1),
        ("TP=$((2 ** 3 / 2 + (6 - 2) % 3 - 1))", 4),
        ("TP=`expr 2 \\* 4`", 8),
        ("TP=${TP:-${FALLBACK:-4}}", 4),
        (": ${TP:=4}; X=${Y:+9}", 4),
        ('SIZE="tp4"; TP=${SIZE#tp}', 4),
        ("A=(1 4 8); TP=${A[1]}", 4),
        ("A=(1 4 8 9); TP=${#A[@]}", 4),
        ("if ! [ 1 = 2 ]; then TP=4; else TP=8; fi", 4),
        ("if ! [ 1 = 1 ]; then TP=8; else TP=4; fi", 4),
        ("if [ 1 = 1 ] && [ 2 -lt 1 ]; then TP=8; else TP=4; fi", 4),
        ("if [ 1 = 2 ] || [[ 1 -eq 1 && 2 -gt 1 ]]; then TP=4; else TP=8; fi", 4),
        ("if [ 1 = 2 ]; then if [ 1 = 1 ]; then TP=8; fi; else TP=4; fi", 4),
        ("TP=4; if [ 1 = 2 ]; then TP=8; fi", 4),
        ("mkdir -p x && TP=4 || TP=8", 4),
        ("TP=$(( (2 > 1) ? 4 : 8 ))", 4),
        ("N=1; TP=$(($N > 1 ? 8 : $N == 1 ? 4 : 2))", 4),
        ("if [ 1 = 2 ]; then MORE=' --swiglu'; fi; TP=4$MORE", 4),
        ("export TP='4'; readonly Q=1", 4),
        ("TP=2; ((TP = TP * 2))", 4),
        ("for TP in 4; do :; done", 4),
        ('[ -z "$NOT_SET" ] && TP=4 || TP=8', 4),
        ("TP=4; while [[ $# -gt 0 ]]; do case $1 in --tp) TP=$2 ;; esac; shift; done", 4),
        ("TP=\\\n4", 4),
        ("set_up() {\n  TP=4\n}\nset_up", 4),
        ("TP=4 # TP=8", 4),
        ("TP='4'\necho TP=8 > /dev/null; TP2=\"TP=8\"", 4),
    ],
)
def test_the_shell_is_understood(values, script, tp):
    assert values(job__sh=f"#!/bin/bash\n{script}\n{MEGATRON} --tensor-model-parallel-size $TP\n")["parallel.tp"] == tp


@pytest.mark.parametrize(
    "command",
    [
        'CMD="{0}"; eval $CMD',
        'CMD="{0}"\n$CMD',
        'srun --label bash -c "{0}"',
        "srun --container-image=x sh -lc '{0}' 2>&1 | tee log.txt",
        "singularity exec --nv image.sif bash -c '{0}' &> log.txt",
        'ARGS=({0})\n"${{ARGS[@]}}" >> log.txt',
        "cat <<'EOF' > inner.sh\nnothing\nEOF\n{0}",
        "sbatch <<EOF\n#!/bin/bash\n{0}\nEOF",
        "cd /work && {0}",
        "time {0} &\nwait",
        "run() {{\n{0}\n}}\nrun",
    ],
)
def test_the_training_is_found_wherever_it_hides(values, command):
    said = values(job__sh="#!/bin/bash\n" + command.format(MEGATRON + " --tensor-model-parallel-size 4") + "\n")
    assert said["parallel.tp"] == 4
    assert said["hardware.nodes"] == 2
    assert said["launch.launcher"] == "torchrun"


def test_two_trainings_that_differ_are_refused_with_both_lines(read):
    with pytest.raises(
        ConfigError, match=r"job\.sh:3 --tensor-model-parallel-size 4.*job\.sh:2 --tensor-model-parallel-size 8"
    ):
        read(
            job__sh=f"#!/bin/bash\n{MEGATRON} --tensor-model-parallel-size 8\n{MEGATRON} --tensor-model-parallel-size 4\n"
        )


def test_an_option_that_is_no_number_is_refused_with_file_line_and_option(read):
    with pytest.raises(ConfigError) as caught:
        read(job__sh=f"#!/bin/bash\n{MEGATRON} --tensor-model-parallel-size eight\n")
    assert "job.sh:2" in str(caught.value)
    assert "tensor_model_parallel_size: 'eight' is not a whole number" in str(caught.value)


def test_options_that_are_related_and_unknown_are_noted(read):
    notes = read(job__sh=f"#!/bin/bash\n{MEGATRON} --new-parallel-trick 3 --lr 1e-4 --tp-comm-overlap\n").notes
    assert any("new_parallel_trick = 3" in note and "tp_comm_overlap" in note and "lr" not in note for note in notes)


def test_a_script_is_saved_as_a_plan_file_that_reads_the_same(read, tmp_path):
    from preflight.plan.planfile import read_job

    document = read("pretrain.sh").document
    (tmp_path / "job.toml").write_text(plan_toml(document))
    again = read_job(tmp_path / "job.toml")
    assert job_of(document, again.source) == again


@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        ("srun torchrun --nnodes 2 --nproc-per-node 8 t.py", "torchrun"),
        ("srun accelerate launch --num_machines 2 --num_processes 16 t.py", "torchrun"),
        ("mpirun -np 16 --map-by node python t.py", "mpi"),
        ("srun --ntasks-per-node=8 python t.py", "slurm"),
    ],
)
def test_slurm_s_distribution_has_a_say_only_where_slurm_numbers_the_ranks(read, command, launcher):
    script = f"#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --distribution=cyclic\n{command} --num-layers 8 --hidden-size 64 --num-attention-heads 8\n"
    imported = read(job__sbatch=script)
    launch = imported.document["launch"]
    assert launch["launcher"] == launcher
    assert (launch.get("distribution") == "cyclic") == (launcher == "slurm")
    assert any("has no say" in note for note in imported.notes) == (launcher != "slurm")
