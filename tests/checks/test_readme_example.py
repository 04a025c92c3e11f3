"""The example that checks/README.md gives works as it stands."""

import re
from pathlib import Path

from preflight.judge.run import run_checks
from preflight.model import Check, Inventory, Rule, Verdict
from tests.builders import make_evidence, make_node, make_plan

README = Path(__file__).parents[2] / "checks" / "README.md"


def example() -> Check:
    [code] = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names: dict = {}
    exec(compile(code, str(README), "exec"), names)  # our own file
    return names["CHECK"]


def verdicts(memory_bytes, **rules) -> list[Verdict]:
    plan = make_plan(nodes=1, tp=8, rules={"host_memory": Rule(**rules)})
    evidence = make_evidence(plan=plan, inventory=Inventory(nodes=(make_node("node0", memory_bytes=memory_bytes),)))
    return [finding.verdict for finding in run_checks([example()], evidence)[0]]


def test_it_leaves_a_healthy_node_alone_and_catches_a_sick_one():
    assert verdicts(10**12) == [Verdict.PASS]
    assert verdicts(10**11) == [Verdict.FAIL]
    assert verdicts(None) == [Verdict.UNKNOWN]


def test_its_limit_can_be_changed_as_it_says():
    assert verdicts(10**11, limits={"gigabytes_per_rank": 10}) == [Verdict.PASS]
