"""Several files as one plan: agreement, contradiction, and every origin."""

import pytest

from preflight.errors import ConfigError
from preflight.formats import read_toml
from preflight.plan.importers import import_files, plan_toml
from preflight.plan.planfile import job_of, read_job
from preflight.report.origins import origins_text

ALL = (
    "large_lm.slurm",
    "pretrain.sh",
    "megatron.log",
    "run_config.yaml",
    "titan.toml",
    "nanotron.yaml",
    "mixtral.json",
    "deepseek.json",
)


@pytest.mark.parametrize("name", [*ALL, "titan.json", "zero3.json", "hostfile", "accelerate.yaml"])
def test_every_value_has_an_origin_and_every_key_is_one_of_a_plan_file(read, name):
    imported = read(name)
    keys = {f"{section}.{key}" for section, values in imported.document.items() for key in values}
    assert keys == set(imported.origins)
    assert all(name in origin for origin in imported.origins.values())
    model = imported.document.get("model", {})
    width = "ffn_size" in model or "expert_ffn_size" in model
    shape = width and {"hidden_size", "attention_heads", "vocab_size"} <= set(model)
    least = {"layers": 2} if shape else {"layers": 2, "parameters": 10}
    document = {**imported.document, "model": {**least, **model}}
    job_of(document, "imported", need_layout=False)  # refuses unknown keys and values out of bounds


@pytest.mark.parametrize("name", ALL)
def test_a_saved_plan_reads_as_the_imported_one(read, name, tmp_path):
    document = read(name).document
    path = tmp_path / "job.toml"
    path.write_text(plan_toml(document))
    needed = "parallel" in document  # a shape alone says nothing of it
    assert read_job(path, need_layout=needed) == job_of(document, str(path), need_layout=needed)


def test_a_saved_plan_can_be_imported_again(read):
    document = read("pretrain.sh").document
    assert read(again__toml=plan_toml(document)).document == document


def test_texts_of_any_kind_survive_the_saving(tmp_path):
    document = {
        "launch": {"hosts": 'a"b\\c\x7fé', "n": [1, 2], "x": 1.5, "y": 1e300, "b": True},
        "odd name": {"k.e": -1},
    }
    path = tmp_path / "job.toml"
    path.write_text(plan_toml(document), encoding="utf-8")
    assert read_toml(path) == document


def test_files_that_agree_become_one_plan(read):
    config = '{"model_type": "llama", "num_hidden_layers": 80, "hidden_size": 8192, "num_key_value_heads": 8, "vocab_size": 128256}'
    document = read("pretrain.sh", config__json=config).document
    assert document["model"]["layers"] == 80
    assert document["model"]["positions"] == 0


def test_files_that_differ_are_refused_with_both_origins(read):
    with pytest.raises(ConfigError) as caught:
        read("pretrain.sh", config__json='{"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 8192}')
    text = str(caught.value)
    assert "config.json:1 num_hidden_layers = 32: model.layers: gives 32, but" in text
    assert "pretrain.sh:33 --num-layers 80" in text


def test_a_default_gives_way_to_a_written_value_and_is_mentioned(read):
    script = "#!/bin/bash\ntorchrun --nnodes 2 --nproc-per-node 8 t.py --num-layers 2 --hidden-size 64 --num-attention-heads 8\n"
    imported = read(
        job__sh=script, config__json='{"model_type": "llama", "num_key_value_heads": 2, "intermediate_size": 999}'
    )
    assert imported.document["model"]["kv_heads"] == 2
    assert imported.document["model"]["ffn_size"] == 999
    assert any("model.kv_heads = 2" in note and "before the default 8" in note for note in imported.notes)


def test_degrees_that_do_not_make_up_the_world_are_refused(read):
    text = "parallelism: {dp: 16, tp: 2, pp: 2}\ntokens: {micro_batch_size: 1}\n"
    with pytest.raises(ConfigError, match=r"tp 2 x cp 1 x pp 2 x dp 16 = 64 ranks, but there are 32"):
        read(config__yaml=text, job__sh="#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gres=gpu:8\n")


def test_a_framework_is_not_two(read):
    with pytest.raises(ConfigError, match=r"parallel\.framework"):
        read("titan.toml", "zero3.json")


def test_nodes_that_are_missing_follow_from_the_world_size(values):
    said = values("megatron.log", job__toml="[hardware]\ngpus_per_node = 8\n[parallel]\n")
    assert said["hardware.nodes"] == 8


def test_what_is_no_file_of_a_known_kind_is_refused_with_the_kinds(read, tmp_path):
    for text in ("hello world\n", "a: 1\nb: 2\n", '{"a": 1}', "", "[1, 2]"):
        with pytest.raises(ConfigError, match="kind"):
            read(strange__txt=text)
    with pytest.raises(ConfigError, match="can't be read"):
        import_files([tmp_path / "not there"])
    with pytest.raises(ConfigError, match="0 files"):
        import_files([])


def test_the_text_of_origins_has_a_line_for_each_value_and_the_notes(read):
    imported = read("large_lm.slurm")
    text = origins_text(*imported)
    lines = text.splitlines()
    assert any(
        line.split()[:2] == ["parallel.tp", "4"] and "--tensor-model-parallel-size 4 ($TP)" in line for line in lines
    )
    assert all(note.isprintable() and note in text for note in imported.notes)
    assert len(lines) == 1 + len(imported.origins) + 2 + len(imported.notes)


def test_origins_of_nothing_say_so():
    assert "nothing was found" in origins_text({"parallel": {}}, {})


MODEL = "MODEL_ARGS=(--num-layers 8 --hidden-size 512 --num-attention-heads 8 --tensor-model-parallel-size $TP)\n"


def test_scripts_that_one_sources_are_read_in_place(read):
    main = '#!/bin/bash\nTP=4\nsource $HERE/model.sh\ntorchrun --nnodes 2 --nproc-per-node 8 t.py "${MODEL_ARGS[@]}"\n'
    imported = read(train__sh=main, model__sh=MODEL)
    assert imported.document["parallel"]["tp"] == 4
    assert imported.document["model"]["layers"] == 8
    assert imported.origins["parallel.tp"].endswith("model.sh:1 --tensor-model-parallel-size 4 ($TP)")
    assert not any("was not given" in note for note in imported.notes)
    alone = read(train__sh=main)
    assert "layers" not in alone.document.get("model", {})
    assert any("model.sh, which was not given" in note for note in alone.notes)


def test_a_script_that_another_one_runs_gets_its_variables_and_arguments(read):
    inner = (
        "#!/bin/bash\nPP=$1\n"
        + MODEL
        + 'torchrun --nnodes 2 --nproc-per-node 8 t.py "${MODEL_ARGS[@]}" --pipeline-model-parallel-size $PP\n'
    )
    outer = "#!/bin/bash\n#SBATCH --nodes=2\nsrun bash -c 'TP=2 bash scripts/model.sh 4 > log'\n"
    imported = read(job__slurm=outer, model__sh=inner)
    assert (imported.document["parallel"]["tp"], imported.document["parallel"]["pp"]) == (2, 4)
    assert imported.document["hardware"]["nodes"] == 2


def test_scripts_that_source_one_another_come_to_an_end(read):
    read(a__sh="#!/bin/bash\n" + "source b.sh\n" * 200, b__sh="#!/bin/bash\n" + "source a.sh\n" * 200)
    with pytest.raises(ConfigError, match="commands, with all that it hands to a shell"):
        read(a__sh="#!/bin/bash\n" + "source b.sh\n" * 999, b__sh="bash c.sh\n" * 999, c__sh="true\n" * 999)


def test_a_vocabulary_that_another_file_says_is_not_asked_for(read):
    script = "#!/bin/bash\nsrun python pretrain_gpt.py --num-layers 8 --hidden-size 64 --num-attention-heads 8\n"
    asked = "size of the vocabulary"
    assert any(asked in note for note in read(job__sh=script).notes)
    assert not any(asked in note for note in read(job__sh=script, rest__toml="[model]\nvocab_size = 1000\n").notes)
