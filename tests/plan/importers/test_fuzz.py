"""Damaged, huge and hostile files: a refusal or an answer, never a traceback, never a wait."""

import random
import time

import pytest

from preflight.errors import ConfigError
from preflight.plan.importers import import_files, plan_toml
from preflight.plan.importers.arithmetic import UnknownNumberError, evaluate
from tests.plan.importers.conftest import FILES

TRAIN = "torchrun t.py --num-layers 2 --hidden-size 8 --bf16"
NAMES = sorted(path.name for path in FILES.iterdir())


def attempt(path):
    """Imports a file; a ConfigError is an answer too. Seconds that it took."""
    begin = time.perf_counter()
    try:
        imported = import_files([path])
        plan_toml(imported.document)
        assert all(isinstance(note, str) for note in imported.notes)
    except ConfigError as error:
        assert len(str(error)) < 5000, "a message that nobody reads"  # noqa: PT017
    return time.perf_counter() - begin


@pytest.mark.parametrize("name", NAMES)
def test_files_cut_at_any_place_are_answered(name, tmp_path):
    data = (FILES / name).read_bytes()
    path = tmp_path / name
    for end in range(0, len(data), max(1, len(data) // 40)):
        path.write_bytes(data[:end])
        attempt(path)


@pytest.mark.parametrize("name", NAMES)
def test_files_with_bytes_changed_are_answered(name, tmp_path):
    chance = random.Random(name)
    data, path = (FILES / name).read_bytes(), tmp_path / name
    alphabet = b"$(){}[]<>\"'`\\#=:-,0 9\n\t|&;*\xff\x00e.T"
    for _ in range(60):
        changed = bytearray(data)
        for _ in range(chance.choice((1, 3, 30))):
            changed[chance.randrange(len(changed))] = chance.choice(alphabet)
        path.write_bytes(changed)
        attempt(path)


@pytest.mark.parametrize("name", NAMES)
def test_files_with_lines_shuffled_are_answered(name, tmp_path):
    chance = random.Random(name)
    lines, path = (FILES / name).read_text().split("\n"), tmp_path / name
    for _ in range(20):
        chance.shuffle(lines)
        path.write_text("\n".join(lines))
        attempt(path)


@pytest.mark.parametrize(
    "script",
    [
        "A=x\n" + "A=$A$A\n" * 60 + f"{TRAIN} --seq-length $A\n",
        "A=$B\nB=$A\n" * 500 + f"{TRAIN} $A\n",
        "A=" + "${X:-" * 5000 + "}" * 5000 + f"\n{TRAIN} $A\n",
        "A=" + "$(" * 20000 + f"\n{TRAIN} $A\n",
        "((" * 50000,
        "(" * 100000,
        "'" * 99999,
        '"$(' * 30000,
        "`" * 99999,
        "cat <<A <<B <<C\n" * 3000,
        "<<" * 50000,
        "if [ a = b ]; then\n" * 20000 + TRAIN,
        "case a in\n" * 20000 + TRAIN,
        "for a in b c; do\n" * 20000 + TRAIN,
        "bash -c " * 10000 + TRAIN,
        "eval " * 20000 + TRAIN,
        "eval eval \"eval '" * 3000 + TRAIN,
        "A=(" + "x " * 40000 + "\n" + 'torchrun "${A[@]}" "${A[@]}"\n' * 200,
        "A=$((" + "(" * 9000 + "1" + ")" * 9000 + f"))\n{TRAIN} --seq-length $A",
        "A=$((" + "9**" * 90 + f"9))\n{TRAIN} --seq-length $A",
        f"{TRAIN} --seq-length " + "9" * 90000,
        f"{TRAIN} --moe-layer-freq ([0]*99999+[1]*99999) --num-experts 4",
        f"{TRAIN} --pipeline-model-parallel-layout " + "(t|)*99999" * 900,
        f"{TRAIN} --hierarchical-context-parallel-sizes " + "2 " * 40000,
        f"{TRAIN} --tensor-model-parallel-size 0 --num-layers-per-virtual-pipeline-stage 0 --micro-batch-size 0",
        f"{TRAIN} --tensor-model-parallel-size -8 --pipeline-model-parallel-size -1 --global-batch-size -5",
        (f"{TRAIN} --lr 1\n") * 15000,
        "[ " + "! " * 20000 + "]\n" + TRAIN,
        "[ " + "a -o " * 20000 + "]\n" + TRAIN,
        "#SBATCH --nodes=" + "9" * 5000 + "\n#SBATCH --ntasks-per-node=" + "9" * 5000 + f"\nsrun {TRAIN}",
        f"srun {'x' * 99000}.py\n{TRAIN}",
        f"{TRAIN} " + "--a-parallel 1 " * 6000,
        f"{TRAIN} " + " ".join(f"--p{i}-parallel 1" for i in range(5000)),
    ],
    ids=range(33),
)
def test_hostile_scripts_are_answered_in_time(tmp_path, script):
    path = tmp_path / "job.sh"
    path.write_text(f"#!/bin/bash\n{script}\n")
    assert attempt(path) < 20


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.json", b'{"parallelism": ' + b"[" * 100000),
        ("a.json", b'{"parallelism": ' + b'{"a":' * 500 + b"1" + b"}" * 501),
        ("a.json", b'{"parallelism": {"tensor_parallel_degree": ' + b"9" * 9000 + b"}}"),
        ("a.json", b'{"parallelism": {"tensor_parallel_degree": [8], "pipeline_parallel_degree": {"a": 1}}}'),
        ("a.json", b'{"parallelism": {"tensor_parallel_degree": NaN, "pipeline_parallel_degree": Infinity}}'),
        ("a.json", b'{"train_batch_size": 1e400, "zero_optimization": []}'),
        ("a.json", b'{"zero_optimization": {"stage": "three"}}'),
        ("a.json", b'{"model_type": ["llama"], "hidden_size": true, "num_hidden_layers": 1}'),
        ("a.json", b'{"a": 1,' * 3),
        (
            "a.json",
            b"{" + b",".join(b'"k%d": {"x_parallel": 1}' % i for i in range(60000)) + b', "zero_optimization": {}}',
        ),
        ("a.yaml", b"a: &a [*a]\n"),
        ("a.yaml", b"parallelism: {dp: [1], tp: {a: 1}, pp: null}\n"),
        ("a.yaml", b"distributed_type: [FSDP]\nnum_machines: 0\nnum_processes: 8\n"),
        ("a.yaml", b"num_machines: 2\nnum_processes: 7\n"),
        ("a.yaml", b"model: !!python/object/apply:os.system ['false']\ntensor_model_parallel_size: 2\n"),
        ("a.yaml", b"model: {tensor_model_parallel_size: {_target_: x, _call_: false}}\n"),
        ("a.toml", b"[parallelism]\ntensor_parallel_degree = 1e9\n"),
        ("a.toml", b"[parallel]\ntp = 8\n[parallel.x]\ny = 1\n"),
        ("a.log", b"- arguments -" * 200000),
        ("a.log", b"-" * 3_000_000),
        ("a.log", b"--- arguments ---\n" + b"  tensor_model_parallel_size ... 8 ...\n" * 100000),
        ("a.log", b"--- arguments ---\n  x ." + b"." * 9_000_000),
        ("a.log", b"--- arguments ---\n  world_size ... 0\n  micro_batch_size ... -1\n"),
        ("hostfile", b"a slots=8\n" * 10),
        ("hostfile", b"".join(b"node%d slots=8\n" % i for i in range(50000))),
        ("hostfile", b"a slots=0\n"),
        ("hostfile", b"a slots=8\nb slots=eight\n"),
        ("bin", bytes(range(256)) * 4000),
        ("bin", b"\x80" * 100000),
    ],
)
def test_hostile_documents_are_answered_in_time(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    assert attempt(path) < 20


def test_arithmetic_is_that_of_the_shell():
    def unknown(_name):
        return None

    assert evaluate("-7 / 2", unknown) == -3
    assert evaluate("-7 % 2", unknown) == -1
    assert evaluate("2 ** 3 ** 2", unknown) == 512
    assert evaluate("10 - 3 - 2", unknown) == 5
    assert evaluate("1_000 * (2 + 3) > 4 && 1", unknown) == 1
    for text in ("1 / 0", "x + 1", "1 +", "(1", "", "2 ** 999", "9 ** 64", "1 ? 2", "1" * 30):
        with pytest.raises(UnknownNumberError):
            evaluate(text, unknown)
