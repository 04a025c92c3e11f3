"""A fleet of 64 simulated nodes, scraped by a real Prometheus with our rules: what breaks arrives at a webhook with the right labels, and resolves.

The rules are a copy in which `for`, the groups' intervals and the minute that they wait for scrapes are shortened, nothing else. The modelled fleet's series carry simulated="true", of which no rule speaks: one server drops that label and so takes them for real, another keeps it.
"""

import contextlib
import json
import re
import time
from pathlib import Path

import pytest

from tests.prometheus.fleet import SLOW_LEAF, SLOW_NODE, SLOW_PAIR, simulated_fleet
from tests.prometheus.stack import alertmanager, job, prometheus, webhook

RULES = Path(__file__).parents[2] / "deploy/prometheus/rules"
NODES = 64
AS_IF_REAL = {"metric_relabel_configs": [{"regex": "simulated", "action": "labeldrop"}]}
pytestmark = [
    pytest.mark.debian("prometheus", "prometheus", "promtool"),
    pytest.mark.debian("prometheus-alertmanager"),
]


def quick_rules(folder):
    """The rules with `for` of a second, evaluated twice a second, of what is a second old."""
    copies = []
    for path in sorted(RULES.glob("*.yml")):
        text = re.sub(r"^( +for: ).*$", r"\g<1>1s", path.read_text(), flags=re.MULTILINE).replace(
            "offset 1m", "offset 1s"
        )
        copies.append(folder / path.name)
        copies[-1].write_text(re.sub(r"^( +interval: ).*$", r"\g<1>500ms", text, flags=re.MULTILINE))
    return copies


def scrape(folder, fleet, *, dead=()):
    """Jobs as deploy/prometheus/prometheus.yml has them: agents from a list of targets with names of nodes, the coordinator in place of the exporter, and on a node that is not in the fleet."""
    listed = [{"targets": [t], "labels": {"node": n}} for n, t in zip(fleet.names, fleet.targets, strict=True)]
    listed += [{"targets": [address], "labels": {"node": name}} for name, address in dead]
    path = folder / "agents.json"
    path.write_text(json.dumps(listed))
    agents = job("preflight-agent", [], honor_labels=True, file_sd_configs=[{"files": [str(path)]}])
    del agents["static_configs"]
    head = [{"targets": [fleet.coordinator], "labels": {"node": "head"}}]
    return [agents, job("preflight-exporter", [], honor_labels=True) | {"static_configs": head}]


@contextlib.contextmanager
def measured_fleet(folder, nodes, *faults):
    """A fleet of which every scrape meets a run that has just ended; what the faults give is worked out before anything waits."""
    with simulated_fleet(folder, nodes=nodes, every_s=0.05) as fleet:
        for each in faults:
            fleet.degrade(each)
        fleet.heal()
        yield fleet


@contextlib.contextmanager
def watched(folder, fleet):
    """(Prometheus, webhook) on this fleet; besides its own there is a list entry of an agent that is down."""
    with webhook() as hook, alertmanager(folder / "alertmanager", hook) as manager:
        jobs = [each | AS_IF_REAL for each in scrape(folder, fleet, dead=[("n99", "127.0.0.1:9")])]
        rules = quick_rules(folder)
        with prometheus(folder / "prometheus", scrape=jobs, rules=rules, alertmanager=manager) as server:
            server.wait_for('up{job="preflight-agent"} == 1', number=len(fleet.names))
            server.wait_for("preflight_slowest_pair_bandwidth_ratio")
            yield server, hook


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with measured_fleet(tmp_path_factory.mktemp("fleet"), NODES, "link", "node", "uplink") as fleet:
        yield fleet


@pytest.fixture(scope="module")
def stack(tmp_path_factory, fleet):
    with watched(tmp_path_factory.mktemp("stack"), fleet) as both:
        yield both


def measured_again(fleet):
    """The same faults, and the same figures, in another run."""
    fleet.measured_s = time.time()


def of_nodes(hook, since=0):
    """(status, alert, node) of all that arrived."""
    return {(status, labels["alertname"], labels.get("node")) for status, labels, _ in hook.events[since:]}


def link_alert_comes_and_goes(fleet, server, hook):
    assert not server.query('ALERTS{alertname!="PreflightAgentDown"}')
    fleet.degrade("link")
    labels, annotations = hook.wait_for("firing", alertname="PreflightPairNewlySlow")
    node = SLOW_PAIR[0].split(":")[0]
    assert labels == {"alertname": "PreflightPairNewlySlow", "severity": "info", "node": node, "other_node": node}
    assert re.search(r"reached (4\d|5\d)(\.\d+)?% of what healthy pairs", annotations["description"])
    assert annotations["runbook_url"].endswith("#preflightpairnewlyslow")
    fleet.heal()
    hook.wait_for("resolved", alertname="PreflightPairNewlySlow", node=node)
    unreached = ("PreflightAgentDown", "PreflightExporterDown")  # on a busy machine a scrape may come too late
    assert {node for _, alert, node in of_nodes(hook) if alert not in unreached} == {node}
    labels, annotations = hook.wait_for("firing", alertname="PreflightAgentDown")
    assert labels["node"] == "n99"
    assert annotations["summary"] == "n99: the agent gives no answer"


def test_a_degraded_link_and_an_agent_that_is_down_arrive_at_the_webhook_by_name_and_the_link_resolves(tmp_path):
    with measured_fleet(tmp_path / "fleet", 16, "link") as fleet, watched(tmp_path, fleet) as (server, hook):
        link_alert_comes_and_goes(fleet, server, hook)


@pytest.mark.soak
def test_the_same_with_a_fleet_of_64_nodes(fleet, stack):
    link_alert_comes_and_goes(fleet, *stack)


@pytest.mark.soak
def test_a_node_that_is_slow_in_two_measurements_and_fails_a_check_is_named_and_no_other(fleet, stack):
    server, hook = stack
    began = len(hook.events)
    fleet.degrade("node")
    hook.wait_for("firing", alertname="PreflightCheckFailing", node=SLOW_NODE, check="hca_ports")
    server.wait_for(f'node_route:preflight_node_bandwidth_ratio:last{{node="{SLOW_NODE}"}} < 0.85')
    assert not server.query('ALERTS{alertname="PreflightNodeSlow"}')  # one measurement, however often it is scraped
    measured_again(fleet)
    labels, _ = hook.wait_for("firing", alertname="PreflightNodeSlow")
    assert labels == {"alertname": "PreflightNodeSlow", "severity": "warning", "node": SLOW_NODE, "route": "between"}
    fleet.heal()
    for alert in ("PreflightNodeSlow", "PreflightCheckFailing"):
        hook.wait_for("resolved", alertname=alert, node=SLOW_NODE)
    blamed = {(alert, node) for _, alert, node in of_nodes(hook, began)}
    assert blamed <= {(a, SLOW_NODE) for a in ("PreflightNodeSlow", "PreflightCheckFailing")} | {
        ("PreflightPairNewlySlow", SLOW_PAIR[0].split(":")[0]),
        ("PreflightAgentDown", "n99"),
    }


@pytest.mark.soak
def test_a_slow_uplink_blames_paths_between_leaves_and_no_node(fleet, stack):
    server, hook = stack
    began = len(hook.events)
    fleet.degrade("uplink")
    server.wait_for("leaf_pair:preflight_leaf_pair_bandwidth_ratio:last < 0.85")
    measured_again(fleet)
    labels, _ = hook.wait_for("firing", alertname="PreflightLeafPathSlow")
    assert SLOW_LEAF in {labels["leaf"], labels["other_leaf"]}
    assert labels["severity"] == "critical"
    fleet.heal()
    hook.wait_for("resolved", alertname="PreflightLeafPathSlow")
    assert not {each for each in of_nodes(hook, began) if each[1] == "PreflightNodeSlow"}
    paths = [labels for _, labels, _ in hook.events[began:] if labels["alertname"] == "PreflightLeafPathSlow"]
    assert all(SLOW_LEAF in {each["leaf"], each["other_leaf"]} for each in paths)


@pytest.mark.soak
def test_a_fleet_that_is_known_to_be_modelled_alerts_nobody(fleet, tmp_path):
    """The same faults, scraped without dropping the label."""
    jobs = scrape(tmp_path, fleet)[1:]  # agents' pages are those of real agents
    with prometheus(tmp_path / "prometheus", scrape=jobs, rules=quick_rules(tmp_path)) as server:
        for faults in (("node",), ("uplink",), ("link",)):
            for change in (fleet.degrade, lambda *_: measured_again(fleet)):
                change(*faults)
                server.wait_for(f'preflight_run_completion_timestamp_seconds{{simulated="true"}} > {time.time() + 1}')
        assert server.query('preflight_slowest_pair_bandwidth_ratio{simulated="true"} < 0.7')
        assert not server.query("ALERTS")
        fleet.heal()
