"""Plans that no planner writes are refused with the place in them, before anything is worked out from them."""

import msgspec
import pytest

from preflight.errors import ConfigError
from preflight.model.possible_plan import impossible_plan
from preflight.report.document import load_report, save_report
from tests.builders import make_plan
from tests.report.pages import fabric

PLAN = make_plan(nodes=2, gpus_per_node=8, tp=8, dp=2)


def changed(**changes):
    return msgspec.structs.replace(PLAN, placement=msgspec.structs.replace(PLAN.placement, **changes))


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        make_plan(nodes=8, gpus_per_node=8, tp=8, pp=4, dp=2),
        make_plan(nodes=4, gpus_per_node=8, tp=2, cp=2, pp=2, dp=4),
        make_plan(nodes=2, gpus_per_node=8, tp=1, ep=8, dp=16),
    ],
)
def test_what_the_planner_writes_is_possible(plan):
    assert impossible_plan(plan) is None
    assert impossible_plan(msgspec.structs.replace(plan, predicted=plan.placement)) is None


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (changed(node_ranks=(10**30,) * 16), "placement: node_ranks: expected numbers from 0 to 1"),
        (changed(node_ranks=(-1,) * 16), "placement: node_ranks"),
        (changed(node_ranks=PLAN.placement.node_ranks * 2), "placement: local_ranks: has 16 entries; expected 32"),
        (changed(local_ranks=(0,) * 16), "two ranks have one node and one local rank"),
        (changed(local_ranks=(2**70, *range(1, 8), *range(8))), "local_ranks: expected numbers from 0"),
        (changed(nodes=()), "nodes: expected one name or more"),
        (changed(nodes=("a", "a")), "nodes: expected one name or more, each once"),
        (changed(nodes=("a", "b" * 5000)), "names of 1 to 1024 letters"),
        (changed(leaves=("leaf0",)), "leaves: has 1 entries; expected 2"),
        (changed(gpu_uuids=("GPU-1",)), "gpu_uuids: has 1 entries; expected 16"),
        (msgspec.structs.replace(PLAN, world_size=2**200), "world_size of 201 bits"),
        (msgspec.structs.replace(PLAN, world_size=15), "placement: has 16 ranks, and the plan 15"),
        (msgspec.structs.replace(PLAN, groups={"tp": ((0, 16),)}), "groups.tp: expected ranks from 0 to 15"),
        (msgspec.structs.replace(PLAN, groups={"tp": ((),)}), "groups.tp: expected groups of one rank or more"),
        (msgspec.structs.replace(PLAN, groups={"tp": ((1, 1),)}), "a rank stands twice in one group"),
        (msgspec.structs.replace(PLAN, groups={"tp": ((1, 2), (2, 3))}), "a rank stands in two groups"),
        (msgspec.structs.replace(PLAN, composites={"x": ((-1,),)}), "composites.x: expected ranks"),
        (msgspec.structs.replace(PLAN, predicted=changed(node_ranks=(5,) * 16).placement), "predicted: node_ranks"),
    ],
)
def test_what_no_planner_writes_is_named(plan, said):
    assert said in (impossible_plan(plan) or "")


def test_a_saved_run_with_such_a_plan_or_figure_is_no_run(tmp_path):
    report, path = fabric(["n1", "n2"], slots=2), tmp_path / "report.json"

    def loaded(**changes):
        save_report(msgspec.structs.replace(report, evidence=msgspec.structs.replace(report.evidence, **changes)), path)
        return load_report(path)

    assert loaded() == report
    plan = report.evidence.plan
    short = msgspec.structs.replace(plan.placement, local_ranks=(0,))
    with pytest.raises(ConfigError, match=r"evidence\.plan: placement: local_ranks: has 1 entries"):
        loaded(plan=msgspec.structs.replace(plan, placement=short))
    one = report.evidence.measurements[0]
    for probe in ({"size_bytes": 10**30}, {"flops": 2**63}):
        with pytest.raises(ConfigError, match=r"measurements\[0\]: (size_bytes|flops): expected"):
            loaded(measurements=(msgspec.structs.replace(one, probe=msgspec.structs.replace(one.probe, **probe)),))
    for time_s in (5e-324, 1e308):
        samples = tuple(msgspec.structs.replace(each, durations_s=(time_s,)) for each in one.samples)
        with pytest.raises(ConfigError, match=r"measurements\[0\]: durations_s: expected positive seconds"):
            loaded(measurements=(msgspec.structs.replace(one, samples=samples),))
    reference = msgspec.structs.replace(report.evidence.localisation.references[0], bytes_per_s=5e-324)
    with pytest.raises(ConfigError, match=r"evidence\.localisation: references"):
        loaded(localisation=msgspec.structs.replace(report.evidence.localisation, references=(reference,)))


def test_a_message_about_a_broken_run_is_short(tmp_path):
    path = tmp_path / "report.json"
    path.write_text(path.name.join(['{"schema": "', "x" * 100_000, '"}']))
    with pytest.raises(ConfigError) as wrong:
        load_report(path)
    assert len(str(wrong.value)) < 1000
    path.write_text('{"schema": "preflight.report/1", "answer": "' + "y" * 100_000 + '"}')
    with pytest.raises(ConfigError) as wrong:
        load_report(path)
    assert len(str(wrong.value)) < 1000
