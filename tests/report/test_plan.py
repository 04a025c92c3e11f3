"""A plan as text and as a document."""

import json

from preflight.model import Finding, Verdict, to_json
from preflight.plan.build import build_plan
from preflight.report.plan import plan_document, plan_text
from tests.builders import make_job, make_plan


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
