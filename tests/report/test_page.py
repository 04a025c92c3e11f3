"""The report page as text: what stands in it, where, and that nothing from a report becomes markup or script."""

import base64
import hashlib
import html
import itertools
import re
import sys
import zlib
from html.parser import HTMLParser

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.cli.main import run_command_line
from preflight.errors import ConfigError, UsageError
from preflight.model import Finding, Part, Settings, Verdict
from preflight.report.document import save_report
from preflight.report.page.data import script_json
from preflight.report.page.pairs import FAILED, Pair, packed, pairs_of
from preflight.report.page.rows import node_pair_rows, node_rows, pair_rows, percent
from preflight.report.page.write import page_html, page_template, write_page
from tests.report.pages import FAST, HOSTILE, fabric

VOID = {"meta", "br", "input", "link", "img", "rect"}


class Page(HTMLParser):
    """A page taken apart: elements with their attributes, in order, and the texts inside each script and style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if self.open and self.open[-1] == tag:
            self.open.pop()
        else:
            self.wrong.append(f"</{tag}> in {self.open[-3:]}")

    def handle_data(self, data):
        if self.open and self.open[-1] in self.raw:
            self.raw[self.open[-1]].append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def report():
    return fabric(["n1", "n2", "n3", "n10"], slow="n3", failed=(0, 4))


@pytest.fixture(scope="module")
def text(report):
    return page_html(report)


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def document(page):
    return msgspec.json.decode(page.raw["script"][0])


def test_every_element_is_closed_where_it_should_be_and_ids_are_unique(page):
    assert page.wrong == []
    assert page.open == []
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [a["href"][1:] for a in page.all("a")]
    assert set(targets) <= set(ids)


def test_the_answer_and_its_reasons_come_before_anything_else(text):
    places = [
        text.index(part) for part in ('<span class="answer">no-go', "1 FAIL (slow_part)", "leave n3 out", "<h2 id=")
    ]
    assert places[0] < places[1] < places[3] < places[2]
    titles = re.findall(r"<h2 id=\"h-(\w+)", text)
    assert titles == ["findings", "pairs", "groups", "placement", "nodes", "coverage", "evidence"]


def test_the_policy_allows_this_script_and_this_style_and_nothing_else(page):
    (policy,) = [m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for name, raw in (("script-src", page.raw["script"][-1]), ("style-src", page.raw["style"][0])):
        digest = base64.b64encode(hashlib.sha256(raw.encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}'" in policy
    assert not [a for _, a in page.elements if any(name.startswith("on") or name in {"style", "src"} for name in a)]


def test_nothing_in_the_page_names_another_machine(text):
    assert not re.search(r"(?i)https?:|url\(|@import|=[\"']//", text)


def test_tables_have_captions_and_their_heads_scopes(page, text):
    assert len(page.all("table")) == text.count("<caption>") > 5
    assert all(attributes.get("scope") in {"col", "row"} for attributes in page.all("th"))
    assert page.all("html") == [{"lang": "en"}]
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_the_worst_pairs_are_listed_with_names_route_rate_reference_and_share(report):
    pairs = pairs_of(report.evidence)
    first, second = pair_rows(pairs)[:2]
    assert (first.rate, first.ratio) == ("failed", "failed")
    assert (first.first, first.second) == ("rank 0, n1 GPU 0", "rank 4, n2 GPU 0")
    assert (second.rate, second.reference, second.ratio) == ("23.0 GB/s", "46.0 GB/s", "50 %")
    assert second.route in {"other leaf, like slots", "same leaf, like slots"}
    assert len({(row.first.split()[2], row.second.split()[2]) for row in node_pair_rows(pairs)}) == 6


def test_a_good_node_is_not_shown_as_bad_for_its_partners_fault(report):
    rows = {row.name: row for row in node_rows(report, pairs_of(report.evidence), {2: [("FAIL", "slow_part")]})}
    assert next(iter(rows)) == "n3"
    assert rows["n3"].findings == "1 FAIL"
    assert rows["n3"].between == "23.0 GB/s (50 %)"
    assert rows["n2"].findings == "none"
    assert rows["n2"].between == "46.0 GB/s (100 %)"
    assert "with n3 GPU" in rows["n10"].slowest


def test_without_a_reference_the_share_is_unknown_and_the_page_says_why(report):
    found = msgspec.structs.replace(report.evidence.localisation, unjudged="too noisy to judge")
    noisy = msgspec.structs.replace(report, evidence=msgspec.structs.replace(report.evidence, localisation=found))
    assert {row.ratio for row in pair_rows(pairs_of(noisy.evidence))} == {"failed", "unknown"}
    assert "No rate is judged: too noisy to judge." in page_html(noisy)


@pytest.mark.parametrize(
    ("ratio", "text"), [(None, "unknown"), (0.9996, "100 %"), (0.997, "99.9 %"), (0.5, "50 %"), (1.2, "120 %")]
)
def test_a_share_is_never_rounded_up_to_all(ratio, text):
    assert percent(ratio) == text


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 300), st.integers(0, 300)).filter(lambda pair: pair[0] < pair[1]),
        st.none() | st.floats(1e3, 1e12),
        min_size=1,
    )
)
def test_pairs_come_out_of_their_columns_as_they_went_in(rates):
    pairs = [Pair(a, b, rate, a % 3) for (a, b), rate in sorted(rates.items())]
    told = packed(pairs, 301)
    data, count = zlib.decompress(base64.b64decode(told["data"])), told["count"]
    per_rank = np.frombuffer(data, "<u4", 301)
    apart = np.frombuffer(data, "<u4", count, 4 * 301)
    codes = np.frombuffer(data, "<u2", count, 4 * (301 + count))
    routes = np.frombuffer(data, np.uint8, count, 4 * (301 + count) + 2 * count)
    a = np.repeat(np.arange(301), per_rank)
    out, b = [], 0
    for i in range(count):
        b = (a[i] if i == 0 or a[i] != a[i - 1] else b) + int(apart[i])
        rate = None if codes[i] == FAILED else float(np.exp(told["low"] + told["step"] * codes[i]))
        out.append((int(a[i]), int(b), rate, int(routes[i])))
    assert [(a, b, route) for a, b, _, route in out] == [(p.a, p.b, p.route) for p in pairs]
    for pair, (_, _, rate, _) in zip(pairs, out, strict=True):
        assert rate == (None if pair.rate is None else pytest.approx(pair.rate, rel=3e-4))


def test_the_document_has_nodes_places_pairs_and_groups(page, report):
    told = document(page)
    assert told["nodes"] == ["n1", "n2", "n3", "n10"]
    assert told["leafOf"] == [0, 0, 1, 1]
    assert told["pairs"]["count"] == len(pairs_of(report.evidence).pairs)
    assert [axis["name"] for axis in told["axes"]] == ["tp", "dp"]
    assert told["axes"][0]["crossing"] == "0000"
    assert told["axes"][1]["crossing"] == "1111"
    assert told["findings"]["2"][0][:2] == ["FAIL", "slow_part"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_text(name):
    nodes = ["good", name]
    finding = Finding(
        check=name,
        subject=name,
        verdict=Verdict.FAIL,
        observed=name,
        remedy=name,
        blames=Part(kind="node", name=name),
        evidence=(name,),
        origin=name,
    )
    hostile = fabric(nodes, slots=2, slow=name, run_id=name, command=name, partial=True, partial_reason=name)
    hostile = msgspec.structs.replace(hostile, findings=(finding,))
    text = page_html(hostile, hostile)
    page = Page(text)
    assert page.wrong == []
    assert [tag for tag, _ in page.elements].count("script") == 2
    assert not [a for tag, a in page.elements if tag == "img" or any(key.startswith("on") for key in a)]
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u2028\u2029]", text)
    assert len(text) < 400_000
    assert document(page)["nodes"][0] == "good"


def test_what_stands_in_a_script_element_cannot_end_it():
    out = script_json({"a": "</script><!-- ]]> \u2028\u2029 & <script>"})
    assert not set("<>&\u2028\u2029") & set(out)
    assert msgspec.json.decode(out) == {"a": "</script><!-- ]]> \u2028\u2029 & <script>"}


def test_a_simulated_run_says_so_wherever_figures_stand():
    simulated = page_html(fabric(["a", "b"], slots=2, settings=Settings(simulated=True)))
    assert "<title>go (SIMULATED)" in simulated
    assert '<p class="banner" role="note"><strong>SIMULATED' in simulated
    assert simulated.count('<span class="sim">SIMULATED</span>') >= 4
    assert '"simulated":true' in simulated
    assert "SIMULATED</strong>" not in page_html(fabric(["a", "b"], slots=2))


def test_what_changed_since_an_earlier_run_is_shown(report):
    before = fabric(["n1", "n2", "n3", "n10"], run_id="r0", started_at_s=1.6e9)
    text = page_html(report, before)
    assert "Compared with run r0: worse" in text
    assert "answer then: go; now: no-go" in text
    assert "slow_part</span> n3" in html.unescape(text)
    assert 'href="#compared"' in text


def test_a_run_without_plan_and_measurements_has_a_page_too(report):
    bare = msgspec.structs.replace(report, evidence=type(report.evidence)(), findings=(), answer="undecided")
    text = page_html(bare)
    assert Page(text).wrong == []
    assert "No FAIL, UNKNOWN or WARN." in text
    assert 'id="pairs"' not in text


def test_one_way_rates_stand_beside_the_pair(report):
    one = next(m for m in report.evidence.measurements if m.probe.ranks == (0, 8))
    ways = tuple(
        msgspec.structs.replace(one, probe=msgspec.structs.replace(one.probe, collective="send", ranks=ranks))
        for ranks in ((0, 8), (8, 0))
    )
    evidence = msgspec.structs.replace(report.evidence, measurements=(*report.evidence.measurements, *ways))
    found = pairs_of(evidence)
    assert found.sends == ((0, 8, pytest.approx(FAST / 2)), (8, 0, pytest.approx(FAST / 2)))
    (row,) = [row for row in pair_rows(found) if (row.a, row.b) == (0, 8)]
    assert row.one_way == ("0 \u2192 8 23.0 GB/s", "8 \u2192 0 23.0 GB/s")


def test_a_folder_is_not_overwritten_and_a_missing_library_is_one_line(report, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="is a folder"):
        write_page(report, tmp_path)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    page_template.cache_clear()
    (tmp_path / "old.html").write_text("old")
    with pytest.raises(ConfigError, match=r"pip install 'cluster-preflight\[report\]'"):
        write_page(report, tmp_path / "old.html")
    assert (tmp_path / "old.html").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["old.html"]


def test_the_command_writes_the_page_and_ends_as_the_run_did(report, tmp_path, capsys):
    save_report(report, tmp_path / "report.json")
    target = tmp_path / "page.html"
    assert run_command_line(["report", str(tmp_path), "--html", str(target)]) == 10
    assert capsys.readouterr().out == f"{target}\n"
    assert target.read_text().startswith("<!doctype html>")
    assert run_command_line(["report", str(tmp_path), "--html", str(tmp_path)]) == 64
    assert run_command_line(["report", str(tmp_path / "nothing"), "--html", str(target)]) == 78
    assert (
        run_command_line(["report", str(tmp_path / "report.json"), "--format", "json", "--compare", str(tmp_path)])
        == 64
    )


def test_the_command_without_html_prints_the_run(report, tmp_path, capsys):
    save_report(report, tmp_path / "report.json")
    assert run_command_line(["report", str(tmp_path)]) == 10
    assert "no-go" in capsys.readouterr().out
    assert run_command_line(["report", str(tmp_path), "--format", "json"]) == 10
    assert msgspec.json.decode(capsys.readouterr().out)["run_id"] == "r1"
