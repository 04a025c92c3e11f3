"""All checks over random nodes: whatever facts a node tells or lacks, no check breaks, no verdict lacks its reason, and the report can be shown and loaded."""

import functools
from xml.etree import ElementTree as ET

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import NODEFAULT
from msgspec.structs import fields, replace

from preflight.cli import topology
from preflight.cli.node import judge_nodes
from preflight.cli.node_text import describe
from preflight.model import Evidence, Inventory, Node, Report, Settings, Verdict, from_json, to_json
from preflight.plan.profiles import profiles_of
from preflight.report.console import findings_text
from preflight.report.junit import junit_text
from preflight.report.prometheus import metrics_text
from tests.checks.any_node import nodes_like
from tests.incidents.boxes import BOXES, healthy


@functools.cache
def machines() -> list[Node]:
    return [healthy(name) for name in list(BOXES)[::3]]


@functools.cache
def of_few() -> list[Node]:
    return [healthy(name) for name in ("HGX H100", "L40S", "Slurm step with two of eight H100")]


def evidence_of(nodes, before=None, **facts):
    inventory = Inventory(nodes=nodes)
    return Evidence(
        inventory=inventory,
        before=Inventory(nodes=before) if before else None,
        profiles=profiles_of(inventory),
        **facts,
    )


def only_printable(text):
    return all(letter.isprintable() or letter == "\n" for letter in text)


@given(data=st.data(), cpu=st.sampled_from([False, False, False, True]))
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_node_breaks_a_check_and_every_verdict_has_its_reason(data, cpu):
    nodes = data.draw(nodes_like(machines()))
    before = data.draw(st.none() | nodes_like(machines()))
    report = judge_nodes(evidence_of(nodes, before, settings=Settings(cpu_declared=cpu)), began_s=0.0, began=0.0)
    assert [finding for finding in report.findings if "the check broke" in finding.observed] == []
    for finding in report.findings:
        if finding.verdict is Verdict.FAIL:
            assert finding.remedy
            assert finding.blames is not None
        if finding.verdict in {Verdict.PASS, Verdict.SKIP, Verdict.UNKNOWN}:
            assert finding.blames is None
    assert from_json(to_json(report), Report) == report


@given(data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_a_node_tells_can_be_shown_in_every_form(data):
    nodes = data.draw(nodes_like(of_few(), most=2))
    report = judge_nodes(evidence_of(nodes), began_s=0.0, began=0.0)
    assert only_printable(findings_text(report.findings, width=60, color=False))
    ET.fromstring(junit_text(report))
    assert metrics_text(report).endswith("\n")
    for node in nodes:
        assert only_printable("\n".join([*describe(node), *topology.describe(node)]))
        assert topology._document(node)


@pytest.mark.parametrize("name", ["HGX H100", "DGX-1 V100", "GB200 tray", "L40S"])
def test_a_fact_that_is_not_known_makes_no_fault_of_a_healthy_machine(name):
    node = healthy(name)
    for without in (
        *without_each(node),
        *(replace(node, gpus=(gpu, *node.gpus[1:])) for gpu in without_each(node.gpus[0])),
    ):
        assert failed(without) == []
    for links in without_each(node.gpus[0].links[0]) if node.gpus[0].links else ():
        gpu = replace(node.gpus[0], links=(links, *node.gpus[0].links[1:]))
        assert failed(replace(node, gpus=(gpu, *node.gpus[1:]))) == []


def without_each(noun):
    """The noun without one of its facts, for each that it may lack."""
    for field in fields(type(noun)):
        if not field.required and field.name not in {"source", "simulated"}:
            default = field.default if field.default is not NODEFAULT else field.default_factory()
            yield replace(noun, **{field.name: default})


def failed(node):
    report = judge_nodes(evidence_of((node,)), began_s=0.0, began=0.0)
    return [finding for finding in report.findings if finding.verdict is Verdict.FAIL]
