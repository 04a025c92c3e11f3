"""A run's verdict at a real Pushgateway: pushed twice it is there once, and it can be taken away."""

import subprocess
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from preflight.model import to_json
from tests.prometheus.stack import job, prometheus, pushgateway
from tests.prometheus.test_metrics import real_run

pytestmark = [
    pytest.mark.soak,
    pytest.mark.debian("prometheus", "prometheus", "promtool"),
    pytest.mark.debian("prometheus-pushgateway"),
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with pushgateway(tmp_path_factory.mktemp("gateway")) as gateway:
        yield gateway


def preflight_push(*arguments):
    words = [sys.executable, "-m", "preflight", "push", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def pushed(gateway):
    return {
        (sample.name, sample.labels.get("answer")): (sample.labels, sample.value)
        for family in text_string_to_metric_families(gateway.get("/metrics"))
        for sample in family.samples
        if sample.labels.get("job") == "preflight"
    }


def saved(folder, name, **facts):
    path = folder / f"{name}.json"
    path.write_bytes(to_json(real_run(**facts)))
    return path


def test_what_is_pushed_takes_the_place_of_what_was_there_and_a_deletion_leaves_nothing(gateway, tmp_path):
    for name, answer in (("first", "go"), ("second", "no-go")):
        path = saved(tmp_path, name, answer=answer, run_id=name)
        done = preflight_push(path, gateway.url, "--cluster", "main/a", "--kind", "nightly")
        assert done.returncode == 0, done.stderr
        found = pushed(gateway)
        assert {key[1] for key, (_, value) in found.items() if key[0] == "preflight_run_answer" and value} == {answer}
        groups = {(labels["cluster"], labels["kind"], labels["instance"]) for labels, _ in found.values()}
        assert groups == {("main/a", "nightly", "")}
        assert not any(name in str(labels) for labels, _ in found.values())
    done = preflight_push(gateway.url, "--cluster", "main/a", "--kind", "nightly", "--delete")
    assert done.returncode == 0, done.stderr
    assert not pushed(gateway)


def test_another_kind_stays_when_one_is_replaced_or_deleted_and_prometheus_keeps_their_labels(gateway, tmp_path):
    path = saved(tmp_path, "run")
    for kind in ("nightly", "acceptance"):
        assert preflight_push(path, gateway.url, "--cluster", "main", "--kind", kind).returncode == 0
    scrape = [job("pushgateway", [gateway.address], honor_labels=True)]
    with prometheus(tmp_path / "prometheus", scrape=scrape) as server:
        found = server.wait_for('preflight_run_answer{answer="go",job="preflight",cluster="main"} == 1', number=2)
        assert {sample.labels["kind"] for sample in found} == {"nightly", "acceptance"}
        assert preflight_push(gateway.url, "--cluster", "main", "--kind", "nightly", "--delete").returncode == 0
        server.wait_for('preflight_run_answer{kind="nightly"}', number=0)
        assert server.query('preflight_run_answer{kind="acceptance"}')


def test_a_gateway_that_is_gone_or_refuses_is_told_in_a_line(tmp_path):
    path = saved(tmp_path, "run")
    done = preflight_push(path, "http://127.0.0.1:9", "--cluster", "main", "--timeout", "5s")
    assert done.returncode not in {0, 1, 10}
    assert len(done.stderr.splitlines()) <= 2
    assert "Traceback" not in done.stderr
