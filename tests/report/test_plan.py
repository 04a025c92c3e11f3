"""A plan as text and as a document."""

import json
import re

import pytest

from preflight.model import Finding, Verdict, to_json
from preflight.plan.build import build_plan
from preflight.report.plan import plan_document, plan_text
from tests.builders import make_job, make_plan
from tests.plan.test_ledger import LLAMA_70B


def test_the_document_keeps_unknown_values_as_null():
    document = plan_document(make_plan(tp=8, pp=4, gpu=None, micro_batches=None), (), "undecided")
    estimate = json.loads(to_json(document))["estimate"]
    for name in ("gpu_memory_bytes", "free_bytes_per_gpu", "micro_batches", "bubble_overhead", "bubble_idle_share"):
        assert estimate[name] is None


def test_the_document_spells_out_every_field_of_a_finding():
    finding = Finding(check="c", subject="s", verdict=Verdict.PASS, observed="o")
    [shown] = json.loads(to_json(plan_document(make_plan(), (finding,), "go")))["findings"]
    assert (shown["verdict"], shown["expected"], shown["remedy"], shown["blames"]) == ("PASS", "", "", None)


def test_uneven_numbers_of_collectives_are_not_rounded():
    document = plan_document(make_plan(layers=81, tp=8, pp=4), (), "go")
    assert document["estimate"]["tp_collectives_per_stage_forward"] == 40.5


def test_a_large_group_with_a_stride_is_abridged():
    text = plan_text(make_plan(nodes=16, tp=8, dp=16))
    assert "dp    0,8,...,120      16       8               16" in text


def test_a_plan_without_groups_and_without_known_memory_says_so():
    text = plan_text(make_plan(nodes=1, gpus_per_node=1, tp=1, gpu=None))
    assert "none: every axis has degree 1" in text
    assert "unknown: the plan file doesn't tell the memory of a GPU" in text


def test_names_from_elsewhere_cannot_steer_the_terminal():
    plan = build_plan(make_job(nodes=None, gpus_per_node=None, tp=1), node_names=["a\x1b[2J"], gpus_per_node=1)
    assert "\x1b" not in plan_text(plan)


def test_the_answers_stand_first_with_their_bands():
    text = plan_text(make_plan(tp=8, pp=4, model=LLAMA_70B, zero_stage=1, sequence_parallel=True))
    answers = text.split("Estimate (predicted)\n")[1].split("\n\n")[0].splitlines()
    assert [line.split("  ")[1] for line in answers] == ["memory", "step time", "pipeline bubble"]
    assert "of 80.0 GB per GPU, expect" in answers[0]
    assert "MFU" in answers[1]


@pytest.mark.parametrize(
    ("job", "name", "missing"),
    [
        ({}, "memory", "ffn_size, attention_heads, vocab_size"),
        ({"model": LLAMA_70B, "seq_length": None}, "memory", "seq_length"),
        ({"model": LLAMA_70B, "micro_batch_size": None}, "step time", "micro_batch_size"),
        ({"model": LLAMA_70B, "micro_batches": None}, "step time", "micro_batches or global_batch_size"),
        ({"model": LLAMA_70B, "gpu": None}, "step time", "[hardware] gpu"),
        ({"model": LLAMA_70B, "gpu": "NVIDIA L40S"}, "step time", "a profile of the GPU"),
        ({"model": LLAMA_70B | {"experts": 8, "dense_layers": 2}}, "step time", "experts_per_token, expert_ffn_size"),
    ],
)
def test_what_is_not_estimated_says_what_it_would_need(job, name, missing):
    text = plan_text(make_plan(**{"tp": 8, "pp": 4, **job}))
    assert re.search(rf"^  {name} +not estimated: needs {re.escape(missing)}", text, re.MULTILINE)


def test_a_state_larger_than_a_gpu_leaves_nothing():
    text = plan_text(make_plan(tp=1, pp=1))
    assert "nothing: 1.04 TB more than the 80.0 GB of a GPU" in text
    assert "-" not in text.split("left for the rest")[1].split("\n")[0]


def test_axes_that_the_ledger_cannot_count_are_named():
    text = plan_text(make_plan(tp=8, pp=4, hidden_size=None, seq_length=None))
    assert "not counted: tp, pp: needs hidden_size" in text
    assert "tp collectives" in text
    assert "not counted" not in plan_text(make_plan(tp=8, pp=4, model=LLAMA_70B))


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ([f"n{i}" for i in range(12)], ": n[0-11]"),
        (sorted(f"n{i}" for i in range(12)), ": n[0-1],n[10-11],n[2-9]"),
        (["b2", "a1", "b1"], ": b2,a1,b1"),
        ([f"n{i}" for i in range(40, 0, -1)], ": n40,n39,n38,n37,n36,n35,n34,n33,... (40 nodes)"),
    ],
)
def test_nodes_are_shown_in_the_order_of_their_ranks(names, shown):
    plan = build_plan(make_job(nodes=None, gpus_per_node=None, tp=1), node_names=names, gpus_per_node=8)
    assert plan_text(plan).splitlines()[1].endswith(shown)
