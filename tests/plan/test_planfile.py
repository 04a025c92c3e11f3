"""Plan files: what is read, and what is refused with file, key, value and what was expected."""

import pytest

from preflight.errors import ConfigError
from preflight.model import Hardware, Job, ModelShape, Parallel, Rule, Training
from preflight.plan.planfile import read_job
from preflight.plan.rules import check_rules

MODEL = '[model]\nparameters = "70B"\nlayers = 80\n'
LEAST = MODEL + "[parallel]\ntp = 8\n"


def read(tmp_path, text: str) -> Job:
    path = tmp_path / "job.toml"
    path.write_text(text)
    return read_job(path)


def refusal(tmp_path, text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, text)
    assert refused.value.exit_code == 78
    assert str(refused.value).startswith(f"{tmp_path / 'job.toml'}: ")
    return str(refused.value).removeprefix(f"{tmp_path / 'job.toml'}: ")


def test_every_key_is_read(tmp_path):
    job = read(
        tmp_path,
        """
        [model]
        parameters = "1.5T"
        layers = 80
        hidden_size = 8192
        [parallel]
        framework = "megatron"
        order = "tp-cp-ep-pp-dp"
        tp = 8
        cp = 2
        ep = 4
        etp = 1
        dp = 3
        pp = 5
        virtual_stages = 2
        [training]
        micro_batches = 7
        global_batch_size = 21
        micro_batch_size = 1
        seq_length = "4K"
        [hardware]
        nodes = 30
        gpus_per_node = 8
        gpu = "H100-80GB"
        gpu_memory = "80GB"
        backend = "nccl"
        [rules]
        a = "warn"
        b = "advisory"
        c = {severity = "off", need = "required", limits = {x = 1, y = 0.5}}
        """,
    )
    assert job == Job(
        source=str(tmp_path / "job.toml"),
        model=ModelShape(parameters=1_500_000_000_000, layers=80, hidden_size=8192),
        parallel=Parallel(order=("tp", "cp", "ep", "pp", "dp"), tp=8, cp=2, ep=4, etp=1, dp=3, pp=5, virtual_stages=2),
        training=Training(micro_batches=7, global_batch_size=21, micro_batch_size=1, seq_length=4000),
        hardware=Hardware(nodes=30, gpus_per_node=8, gpu="H100-80GB", gpu_memory_bytes=80 * 10**9, backend="nccl"),
        rules={
            "a": Rule(severity="warn"),
            "b": Rule(need="advisory"),
            "c": Rule(severity="off", need="required", limits={"x": 1.0, "y": 0.5}),
        },
    )


def test_what_is_not_said_is_unknown(tmp_path):
    job = read(tmp_path, LEAST)
    assert (job.training, job.hardware, job.rules, job.parallel.dp) == (Training(), Hardware(), {}, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LEAST + "[trainning]\n", "trainning: unknown section; did you mean 'training'?"),
        (LEAST + "[hardware]\nnode = 8\n", "hardware.node: unknown key; did you mean 'nodes'?"),
        (LEAST + "[parallel.tensor]\n", "parallel.tensor: unknown key"),
        (LEAST + "[hardware]\n'a b' = 8\n", "hardware.'a b': unknown key"),
        (LEAST + '[rules]\nx = {severty = "warn"}\n', "rules.x.severty: unknown key; did you mean 'severity'?"),
        ("[parallel]\ntp = 8\n", "model.layers: is missing"),
        ('[model]\nparameters = "70B"\n[parallel]\n', "model.layers: is missing"),
        (MODEL, "parallel: is missing"),
        ("model = 3\n", "model: 3 is not a section"),
        (MODEL + "[parallel]\ntp = 0\n", "parallel.tp: 0 is not a whole number from 1 to 1048576"),
        (MODEL + "[parallel]\ntp = -8\n", "parallel.tp: -8 is not a whole number"),
        (MODEL + "[parallel]\ntp = true\n", "parallel.tp: True is not a whole number"),
        (MODEL + "[parallel]\ntp = 8.0\n", "parallel.tp: 8.0 is not a whole number"),
        (MODEL + '[parallel]\ntp = "8"\n', "parallel.tp: '8' is not a whole number"),
        (MODEL + "[parallel]\ntp = [8]\n", "parallel.tp: a list is not a whole number"),
        (MODEL + "[parallel]\ntp = 2026-01-01\n", "parallel.tp: datetime.date(2026, 1, 1) is not a whole number"),
        (MODEL + f"[parallel]\ntp = 0x{'f' * 5000}\n", "is not TOML: a whole number has more than 64 bits"),
        (MODEL.replace('"70B"', '"70X"') + "[parallel]\n", "model.parameters: '70X' is not a whole number from 1 to"),
        (MODEL.replace('"70B"', f'"{"9" * 999}T"') + "[parallel]\n", "model.parameters: '999999"),
        (MODEL.replace('"70B"', '"0.1"') + "[parallel]\n", "model.parameters: '0.1' is not"),
        (MODEL + '[parallel]\nframework = "megatrn"\n', "parallel.framework: 'megatrn' is not one of megatron"),
        (MODEL + '[parallel]\norder = "tp-tp"\n', "parallel.order: 'tp-tp' is not a list of axes"),
        (MODEL + '[parallel]\norder = "tp-xp"\n', "parallel.order: 'tp-xp' is not a list of axes"),
        (LEAST + '[hardware]\ngpu = ""\n', "hardware.gpu: '' is not a text of one line"),
        (LEAST + '[hardware]\ngpu = "a\\nb"\n', "hardware.gpu: 'a\\nb' is not a text of one line"),
        (LEAST + '[hardware]\ngpu_memory = "80 apples"\n', "hardware.gpu_memory: '80 apples' is not a size"),
        (LEAST + '[hardware]\nbackend = "mpi"\n', "hardware.backend: 'mpi' is not one of auto, nccl, gloo"),
        (LEAST + "[training]\nglobal_batch_size = 64\n", "training.micro_batch_size: is missing"),
        (
            LEAST + '[rules]\nx = "loud"\n',
            "rules.x: 'loud' is not one of fail, warn, off, required, advisory, or a table",
        ),
        (LEAST + "[rules]\nx = {limits = 3}\n", "rules.x.limits: 3 is not a table"),
        (LEAST + "[rules]\nx = {limits = {y = nan}}\n", "rules.x.limits.y: nan is not a finite number"),
        (LEAST + "[rules]\nx = {limits = {y = true}}\n", "rules.x.limits.y: True is not a finite number"),
        (
            LEAST + f"[rules]\nx = {{limits = {{y = 0x{'f' * 400}}}}}\n",
            "is not TOML: a whole number has more than 64 bits",
        ),
        ("rules = 1\n" + LEAST, "rules: 1 is not a section"),
        ("[model\n", "is not TOML: "),
        ("x = " + "1" * 5000, "is not TOML: "),
        ("x = " + "[" * 5000, "is nested too deeply"),
    ],
)
def test_a_fault_is_refused_with_its_key_its_value_and_what_was_expected(tmp_path, text, message):
    assert refusal(tmp_path, text).startswith(message)


def test_a_long_value_is_shortened(tmp_path):
    assert len(refusal(tmp_path, MODEL + f'[parallel]\ntp = "{"x" * 10**6}"\n')) < 300


def test_known_names_are_listed_where_one_is_unknown(tmp_path):
    assert "known: nodes, gpus_per_node, gpu, gpu_memory, backend" in refusal(tmp_path, LEAST + "[hardware]\nx = 8\n")


KNOWN = {"pipeline_bubble": {"warn_idle_share": 0.1}, "reachable": {}}


def test_rules_of_known_checks_and_limits_are_accepted():
    check_rules("job.toml", {"pipeline_bubble": Rule(limits={"warn_idle_share": 0.2})}, KNOWN)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"pipeline_buble": Rule()}, "rules.pipeline_buble: unknown check; did you mean 'pipeline_bubble'?"),
        ({"pipeline_bubble": Rule(limits={"idle": 1})}, "rules.pipeline_bubble.limits.idle: unknown limit"),
        ({"reachable": Rule(limits={"x": 1})}, "rules.reachable.limits.x: unknown limit(.|\n)*it has no limits"),
    ],
)
def test_rules_that_name_nothing_are_refused(rules, message):
    with pytest.raises(ConfigError, match=rf"job.toml: {message.replace('?', '[?]')}"):
        check_rules("job.toml", rules, KNOWN)


def test_more_dense_layers_than_layers_or_more_experts_per_token_than_experts_are_refused(tmp_path):
    parallel = "[parallel]\ntp = 8\n"
    assert refusal(tmp_path, f"{MODEL}dense_layers = 81\n{parallel}") == "model.dense_layers: 81 is more than layers 80"
    experts = f"{MODEL}experts = 8\nexperts_per_token = 9\n{parallel}"
    assert refusal(tmp_path, experts) == "model.experts_per_token: 9 is more than experts 8"
    read(tmp_path, f"{MODEL}experts = 8\nexperts_per_token = 8\ndense_layers = 80\n{parallel}")


def test_what_is_overlapped_may_be_said(tmp_path):
    keys = "overlap_tp = false\noverlap_gradients = true\noverlap_parameters = true\n"
    job = read(tmp_path, f"{LEAST}scatter_gather = true\n[training]\n{keys}")
    assert job.training == Training(overlap_tp=False, overlap_gradients=True, overlap_parameters=True)
    assert job.parallel.scatter_gather


def test_parameters_that_contradict_the_shape_are_refused_and_rounded_ones_taken(tmp_path):
    shape = (
        "layers = 80\nhidden_size = 8192\nffn_size = 28672\nattention_heads = 64\nkv_heads = 8\nvocab_size = 128256\n"
    )
    rest = "[parallel]\ntp = 8\n"
    assert refusal(tmp_path, f'[model]\nparameters = "7B"\n{shape}{rest}').startswith(
        "model.parameters: 7e9, but the shape amounts to 70.55e9"
    )
    assert read(tmp_path, f'[model]\nparameters = "70B"\n{shape}{rest}').model.parameters == 70 * 10**9
