"""Saved runs come back the same, and anything else is refused with a reason."""

import gzip
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from preflight.errors import ConfigError, WorldError
from preflight.model import Evidence, Finding, Report, Verdict, to_json
from preflight.report import packed as packed_reports
from preflight.report.document import load_report, save_report
from preflight.report.packed import unpack
from preflight.report.runs import load_run, save_run
from tests.builders import make_evidence, make_inventory, make_measurement


@pytest.fixture
def report() -> Report:
    return Report(
        run_id="r1",
        command="run",
        started_at_s=1.5,
        duration_s=2.0,
        answer="go",
        findings=(Finding(check="c", subject="s", verdict=Verdict.PASS, observed="o"),),
        evidence=make_evidence(inventory=make_inventory(2), measurements=(make_measurement((0, 1)),)),
    )


def test_a_report_comes_back_equal(report, tmp_path):
    save_report(report, tmp_path / "report.json")
    assert load_report(tmp_path / "report.json") == report
    assert json.loads((tmp_path / "report.json").read_text())["schema"] == "preflight.report/1"


def test_a_place_that_cannot_be_written_is_a_broken_world(report, tmp_path):
    with pytest.raises(WorldError, match="can't be written"):
        save_report(report, tmp_path / "nowhere" / "report.json")


def test_a_packed_report_comes_back_equal_and_is_gzip_of_the_same_document(report, tmp_path):
    many = tuple(make_measurement((n, n + 1)) for n in range(0, 10_000, 2))  # more than one piece
    report = structs.replace(report, evidence=structs.replace(report.evidence, measurements=many))
    save_report(report, tmp_path / "report.json.gz")
    save_report(report, tmp_path / "report.json")
    assert load_report(tmp_path / "report.json.gz") == report
    packed = (tmp_path / "report.json.gz").read_bytes()
    assert json.loads(gzip.decompress(packed)) == json.loads((tmp_path / "report.json").read_bytes())
    (tmp_path / "renamed.json").write_bytes(gzip.compress(gzip.decompress(packed)))
    assert load_report(tmp_path / "renamed.json") == report


@pytest.mark.parametrize("number", [0, 1])
def test_few_measurements_are_packed_too(report, tmp_path, number):
    evidence = structs.replace(report.evidence, measurements=(make_measurement((0, 1)),) * number)
    save_report(structs.replace(report, evidence=evidence), tmp_path / "r.gz")
    assert load_report(tmp_path / "r.gz").evidence == evidence


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda data: data[:-9], "is not whole"),
        (lambda data: data + data, "goes on behind its end"),
        (lambda data: data[:40] + bytes(40) + data[80:], "can't be unpacked"),
    ],
)
def test_a_damaged_packed_report_is_refused(report, tmp_path, change, complaint):
    path = tmp_path / "report.json.gz"
    save_report(report, path)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ConfigError, match=complaint):
        load_report(path)


def test_a_packed_report_that_would_fill_the_memory_is_refused():
    with pytest.raises(ValueError, match="unpacks to more than 1 MiB"):
        unpack(gzip.compress(bytes(2**21)), 2**20)


def test_a_folder_holds_one_report_packed_if_it_is_large(report, tmp_path, monkeypatch):
    save_run(report, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    monkeypatch.setattr(packed_reports, "MANY", 0)
    save_run(report, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json.gz"]
    assert load_run(tmp_path) == report


def changed(report, tmp_path, change):
    document = json.loads(to_json(report))
    change(document)
    path = tmp_path / "report.json"
    path.write_text(json.dumps(document))
    return path


def set_first(measurement_key, value):
    def change(document):
        measurement = document["evidence"]["measurements"][0]
        if measurement_key == "durations_s":
            measurement["samples"][0]["durations_s"] = value
        else:
            measurement["probe"][measurement_key] = value

    return change


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda d: d.update(schema="preflight.report/2"), "preflight.report/2"),
        (lambda d: d.pop("schema"), "has no schema"),
        (lambda d: d.update(schema=["x"]), "schema"),
        (lambda d: d.update(answer="maybe"), "answer"),
        (lambda d: d.update(duration_s=float("nan")), "malformed"),
        (lambda d: d.update(duration_s=None), "duration_s"),
        (lambda d: d["findings"][0].update(verdict="GOOD"), "verdict"),
        (lambda d: d["evidence"]["inventory"]["nodes"][1].update(num_cpus=10**400), r"inventory: nodes\[1\]: num_cpus"),
        (lambda d: d["evidence"]["inventory"]["nodes"][1].update(name="node0"), "name is that of another node"),
        (lambda d: d["evidence"].update(before={"nodes": [{"name": ""}]}), "evidence.before"),
        (set_first("ranks", [0]), "ranks"),
        (set_first("ranks", [1, 1]), "ranks"),
        (set_first("ranks", [-1, 1]), "ranks"),
        (set_first("size_bytes", 0), "size_bytes"),
        (set_first("durations_s", [0.0]), "durations_s"),
        (set_first("durations_s", [-1.0]), "durations_s"),
    ],
)
def test_a_wrong_document_is_refused_with_the_place_of_the_fault(report, tmp_path, change, complaint):
    with pytest.raises(ConfigError, match=complaint) as caught:
        load_report(changed(report, tmp_path, change))
    assert "report.json" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"schema":'])
def test_what_is_no_document_at_all_is_refused(tmp_path, content):
    path = tmp_path / "report.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        load_report(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="can't be read"):
        load_report(tmp_path / "none.json")


@given(st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_document_cut_anywhere_is_refused(report, tmp_path, data):
    whole = to_json(report).rstrip()
    path = tmp_path / "report.json"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(ConfigError):
        load_report(path)


def test_a_field_of_a_newer_version_is_ignored(report, tmp_path):
    assert load_report(changed(report, tmp_path, lambda d: d.update(new_field=1))) == report


def test_evidence_of_nothing_is_a_report_too(tmp_path):
    empty = Report(
        run_id="r", command="plan", started_at_s=0, duration_s=0, answer="undecided", findings=(), evidence=Evidence()
    )
    save_report(empty, tmp_path / "r.json")
    assert load_report(tmp_path / "r.json") == empty
