"""What launchers and Slurm say about nodes, GPUs and the places of ranks."""

import pytest

from preflight.errors import ConfigError

TRAIN = "pretrain_gpt.py --num-layers 8 --hidden-size 512 --num-attention-heads 8 --tensor-model-parallel-size 8"


def head(*options):
    return "#!/bin/bash\n" + "".join(f"#SBATCH {option}\n" for option in options)


def test_one_task_per_gpu_under_srun_is_slurms_own_placement(read):
    script = head("-N 8", "--ntasks-per-node=8", "--gres=gpu:h100:8", "--distribution=cyclic:block", "--segment=4")
    said = read(job__slurm=f"{script}srun python {TRAIN}\n").document
    assert said["hardware"] == {"nodes": 8, "gpus_per_node": 8}
    assert said["launch"] == {"distribution": "cyclic", "segment": 4, "launcher": "slurm"}


def test_srun_overrules_sbatch(values):
    script = head("--nodes=8", "--ntasks-per-node=8")
    said = values(job__slurm=f"{script}srun -N4 --ntasks-per-node 4 -m plane=4 -w gpu[01-04] python {TRAIN}\n")
    assert said["hardware.nodes"] == 4
    assert said["hardware.gpus_per_node"] == 4
    assert said["launch.distribution"] == "plane=4"
    assert said["launch.hosts"] == "gpu[01-04]"


def test_tasks_in_all_over_nodes_give_ranks_per_node(values):
    said = values(job__slurm=head("--nodes=4", "--ntasks=32") + f"srun python {TRAIN}\n")
    assert said["hardware.gpus_per_node"] == 8


@pytest.mark.parametrize(
    ("options", "rendezvous"),
    [
        ("--rdzv_backend c10d --rdzv_endpoint n1:29500", "c10d"),
        ("--rdzv-backend=c10d", "c10d"),
        ("--master_addr n1 --node_rank 0", "static"),
        ("--rdzv-endpoint n1:29500", "static"),  # torchrun's default backend, whatever the endpoint
        ("--standalone", "c10d"),
    ],
)
def test_the_rendezvous_of_torchrun_is_the_one_it_would_take(values, options, rendezvous):
    said = values(job__sh=f"#!/bin/bash\ntorchrun --nnodes 1 --nproc-per-node 8 {options} {TRAIN}\n")
    assert said["launch.rendezvous"] == rendezvous


def test_torchrun_without_nnodes_is_one_node_and_the_trap_is_told(read):
    imported = read(job__slurm=head("--nodes=4") + f"srun torchrun --nproc-per-node 8 {TRAIN}\n")
    assert imported.document["hardware"]["nodes"] == 1
    assert any("a world of its own on every node" in note for note in imported.notes)


def test_a_launcher_with_other_nodes_than_slurm_is_refused(read):
    with pytest.raises(ConfigError, match=r"hardware\.nodes.*gives 4, but .* gives 8|gives 8, but .* gives 4"):
        read(job__slurm=head("--nodes=4") + f"srun torchrun --nnodes 8 --nproc-per-node 8 {TRAIN}\n")


def test_slurms_own_variables_are_filled_in_from_what_was_asked_for(values):
    script = head("--nodes=4", "--gpus-per-node=8", "--ntasks-per-node=1")
    said = values(
        job__slurm=f"{script}srun torchrun --nnodes $SLURM_NNODES --nproc-per-node $SLURM_GPUS_ON_NODE {TRAIN}\n"
    )
    assert (said["hardware.nodes"], said["hardware.gpus_per_node"]) == (4, 8)


def test_gpus_of_a_worker_count_that_is_detected_come_from_slurm(values):
    script = head("--nodes=4", "--gres=gpu:4")
    assert (
        values(job__slurm=f"{script}srun torchrun --nnodes 4 --nproc-per-node gpu {TRAIN}\n")["hardware.gpus_per_node"]
        == 4
    )


def test_a_range_of_nodes_is_no_number_of_nodes(read):
    imported = read(job__sh=f"#!/bin/bash\ntorchrun --nnodes 2:4 --nproc-per-node 8 {TRAIN}\n")
    assert "nodes" not in imported.document["hardware"]
    assert any("no fixed number of nodes" in note for note in imported.notes)


def test_deepspeeds_launcher_asks_for_its_hostfile_and_takes_it(read):
    script = "#!/bin/bash\ndeepspeed --hostfile /job/hostfile --num_gpus 8 train.py --deepspeed ds.json --per_device_train_batch_size 2\n"
    alone = read(job__sh=script)
    assert any("--hostfile /job/hostfile" in note and "was not given" in note for note in alone.notes)
    both = read("hostfile", job__sh=script)
    assert both.document["launch"]["launcher"] == "deepspeed"
    assert both.document["launch"]["hosts"] == "gpu-10,gpu-2,gpu-1,gpu-3"
    assert both.document["hardware"] == {"nodes": 4, "gpus_per_node": 8}
    assert both.document["training"]["micro_batch_size"] == 2
    assert not any("hostfile" in note and "was not given" in note for note in both.notes)


def test_mpirun_by_node_is_cyclic(values):
    said = values(job__sh=f"#!/bin/bash\nmpirun -np 64 -npernode 8 --map-by node python {TRAIN}\n")
    assert said["launch.launcher"] == "mpi"
    assert said["launch.distribution"] == "by-node"
    assert (said["hardware.nodes"], said["hardware.gpus_per_node"]) == (8, 8)


def test_accelerate_launch_starts_workers_as_torchrun_does(values):
    said = values(
        job__sh="#!/bin/bash\naccelerate launch --num_machines 2 --num_processes 16 --rdzv_backend c10d train.py\n"
    )
    assert said["launch.launcher"] == "torchrun"
    assert said["launch.rendezvous"] == "c10d"
    assert (said["hardware.nodes"], said["hardware.gpus_per_node"]) == (2, 8)


def test_visible_devices_and_parallelism_variables_of_the_environment_are_taken(values):
    script = "export CUDA_VISIBLE_DEVICES=3,2,1,0\nexport PARALLELISM_CONFIG_TP_SIZE=4\nexport PARALLELISM_CONFIG_DP_SHARD_SIZE=2\n"
    said = values(job__sh=f"#!/bin/bash\n{script}torchrun --nnodes 2 --nproc-per-node 4 train.py\n")
    assert said["launch.visible_devices"] == "3,2,1,0"
    assert (said["parallel.tp"], said["parallel.dp_shard"], said["parallel.framework"]) == (4, 2, "fsdp")


def test_a_file_of_variables_alone_is_taken(values):
    assert values(accelerate__env="PARALLELISM_CONFIG_CP_SIZE=2\n")["parallel.cp"] == 2


def test_dotted_options_count_as_written(values):
    command = "torchrun --nnodes 4 --nproc-per-node 8 -m torchtitan.train --job.config_file x.toml"
    said = values(
        job__sh=f"#!/bin/bash\n{command} --parallelism.tensor_parallel_degree 4 --parallelism.pipeline_parallel_degree=2\n"
    )
    assert (said["parallel.tp"], said["parallel.pp"], said["parallel.framework"]) == (4, 2, "torchtitan")
    said = values(
        job__sh="#!/bin/bash\ntorchrun --nproc-per-node 8 run.py model.tensor_model_parallel_size=2 train.micro_batch_size=4\n"
    )
    assert (said["parallel.tp"], said["training.micro_batch_size"]) == (2, 4)
    assert "parallel.pp" not in said


def test_a_dotted_option_that_overrules_a_file_is_refused(read):
    command = "torchrun --nproc-per-node 8 -m torchtitan.train --parallelism.tensor_parallel_degree 4"
    with pytest.raises(ConfigError, match=r"parallel\.tp: gives 4, but .*titan\.toml:20"):
        read("titan.toml", job__sh=f"#!/bin/bash\n{command}\n")


def test_a_script_that_starts_nothing_known_still_says_what_slurm_was_asked_for(read):
    imported = read(job__slurm=head("--nodes=4", "--gres=gpu:8") + "make all\n")
    assert imported.document["hardware"] == {"nodes": 4, "gpus_per_node": 8}
    assert any("no command in it starts a training" in note for note in imported.notes)


def test_a_host_named_twice_is_refused_and_uneven_slots_are_told(read):
    with pytest.raises(ConfigError, match="named twice"):
        read(hostfile="a slots=8\na slots=8\n")
    imported = read(hostfile="a slots=4\nb slots=8\n")
    assert "gpus_per_node" not in imported.document["hardware"]
    assert any("4, 8 slots" in note for note in imported.notes)


def test_a_rankfile_names_hosts_and_ranks(values):
    said = values(rankfile="".join(f"rank {i}=node{i % 2} slot={i // 2}\n" for i in range(8)))
    assert said["launch.launcher"] == "mpi"
    assert (said["hardware.nodes"], said["hardware.gpus_per_node"]) == (2, 4)


def test_a_jobset_gives_pods_as_nodes_and_the_command_in_it(read):
    imported = read("jobset.yaml")
    assert imported.document["hardware"] == {"gpus_per_node": 8, "nodes": 16}
    launch = imported.document["launch"]
    assert (launch["launcher"], launch["rendezvous"], launch["hosts"]) == (
        "torchrun",
        "c10d",
        "pretrain-workers-0-[0-15]",
    )
    assert (imported.document["parallel"]["tp"], imported.document["parallel"]["pp"]) == (8, 4)
    assert "jobset.yaml(train)" in imported.origins["parallel.tp"]


def test_a_pytorchjob_counts_its_master_among_the_nodes(values):
    pod = "{spec: {containers: [{name: pytorch, command: [torchrun, train.py], resources: {limits: {nvidia.com/gpu: 4}}}]}}"
    text = f"apiVersion: v1\nkind: PyTorchJob\nmetadata: {{name: ddp}}\nspec:\n  pytorchReplicaSpecs:\n    Master: {{replicas: 1, template: {pod}}}\n    Worker: {{replicas: 3, template: {pod}}}\n"
    said = values(job__yaml=text)
    assert (said["hardware.nodes"], said["hardware.gpus_per_node"]) == (4, 4)
    assert said["launch.hosts"] == "ddp-master-0,ddp-worker-[0-2]"


def test_a_manifest_without_torchrun_numbers_ranks_by_pod_index(values):
    text = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: run}\nspec:\n  parallelism: 4\n  template: {spec: {containers: [{name: a, command: [python, train.py], resources: {limits: {nvidia.com/gpu: 8}}}]}}\n"
    said = values(job__yaml=text)
    assert (said["launch.launcher"], said["launch.hosts"], said["hardware.nodes"]) == ("kubernetes", "run-[0-3]", 4)


def test_a_manifest_without_gpus_says_so(read):
    imported = read(job__yaml="apiVersion: batch/v1\nkind: Job\nspec: {parallelism: 4}\n")
    assert any("asks for GPUs" in note for note in imported.notes)
    assert imported.document == {}


def test_options_of_the_trainer_fill_what_deepspeeds_file_leaves_to_it(read):
    config = '{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2}}'
    command = "deepspeed --num_nodes 2 --num_gpus 8 run.py --deepspeed ds.json --per_device_train_batch_size 4"
    script = f"#!/bin/bash\n{command} --gradient_accumulation_steps 2 --bf16 True --gradient_checkpointing True --max_seq_length 2048\n"
    document = read(ds__json=config, job__sh=script).document
    assert document["training"] == {
        "micro_batch_size": 4,
        "seq_length": 2048,
        "precision": "bf16",
        "recompute": "full",
        "micro_batches": 2,
    }
    assert document["parallel"] == {"framework": "deepspeed", "zero_stage": 2}


def test_flags_of_accelerate_launch_say_what_its_file_would(values):
    flags = "--use_fsdp --fsdp_sharding_strategy FULL_SHARD --mixed_precision bf16 --num_machines 2 --num_processes 16"
    said = values(job__sh=f"#!/bin/bash\naccelerate launch {flags} train.py\n")
    assert (said["parallel.framework"], said["parallel.zero_stage"], said["training.precision"]) == ("fsdp", 3, "bf16")
    assert (said["hardware.nodes"], said["hardware.gpus_per_node"]) == (2, 8)


def test_gpus_in_all_are_spread_over_nodes(values):
    assert values(job__slurm=head("--nodes=4", "--gpus=h100:32") + "make\n")["hardware.gpus_per_node"] == 8


@pytest.mark.parametrize("text", ["a]b slots=8\n", "[] slots=8\nb slots=8\n", "a slots=8\n$(rm) slots=8\n"])
def test_a_name_that_no_host_can_have_is_refused(read, text):
    with pytest.raises(ConfigError):
        read(hostfile=text)
