"""The servers that other tests use start on free ports, do what is asked of them, and are gone afterwards."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.prometheus.stack import alertmanager, job, node_exporter, prometheus, pushgateway, webhook

pytestmark = [
    pytest.mark.soak,  # the default suite's live tests use the same
    pytest.mark.debian("prometheus", "prometheus", "promtool"),
    pytest.mark.debian("prometheus-alertmanager"),
    pytest.mark.debian("prometheus-node-exporter"),
    pytest.mark.debian("prometheus-pushgateway"),
]


@pytest.fixture
def page():
    """A page of metrics that a test can change: [text]."""
    text = ["thing 1\n"]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = text[0].encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        text.append(f"127.0.0.1:{server.server_address[1]}")
        yield text
        server.shutdown()


def test_an_alert_reaches_the_webhook_and_resolves(tmp_path, page):
    rules = tmp_path / "rules.yml"
    rules.write_text("groups: [{name: g, rules: [{alert: Big, expr: thing > 5, labels: {severity: info}}]}]")
    with webhook() as hook, alertmanager(tmp_path / "am", hook) as manager:
        scrape = [job("pages", [page[1]])]
        with prometheus(tmp_path / "prom", scrape=scrape, rules=[rules], alertmanager=manager) as server:
            assert server.wait_for("thing")[0].value == 1
            page[0] = "thing 7\n"
            labels, _ = hook.wait_for("firing", alertname="Big")
            assert labels["severity"] == "info"
            assert labels["job"] == "pages"
            page[0] = "thing 2\n"
            hook.wait_for("resolved", alertname="Big")
            assert not server.alerts()
            assert server.targets()[0]["health"] == "up"
            with pytest.raises(AssertionError, match="parse error"):
                server.query("sum(")
            with pytest.raises(AssertionError, match="thing > 100 has 1 series"):
                server.wait_for("thing > 100", deadline_s=0.2)
        assert server.server.process.returncode is not None
    assert manager.process.returncode is not None


def test_text_files_and_pushed_metrics_are_served(tmp_path):
    folder = tmp_path / "textfiles"
    folder.mkdir()
    (folder / "a.prom").write_text("thing 1\n")
    with node_exporter(tmp_path / "exporter", folder) as exporter, pushgateway(tmp_path / "push") as gateway:
        assert "\nthing 1\n" in exporter.get("/metrics")
        assert "push_time_seconds" not in gateway.get("/metrics")


def test_a_server_that_does_not_start_is_told_with_its_words(tmp_path):
    bad = tmp_path / "bad.yml"
    bad.write_text("groups: [{")
    with pytest.raises(AssertionError, match="ended with"), prometheus(tmp_path, rules=[bad]):
        pass
