"""The reason of a drained node: short, plain, the same for the same findings, and readable in the twenty letters of `sinfo -R`."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preflight.model import Finding, Part, Verdict
from preflight.slurm.commands import plain
from preflight.slurm.reason import (
    MAX_LETTERS,
    MEASURED,
    check_of,
    checks_of,
    is_ours,
    kind_of,
    readable,
    reason_of,
    run_of,
)
from preflight_checks import CHECKS

UUID = "GPU-2222aaaa-0000-0000-0000-000000000002"


def finding(check="row_remap", subject=f"n3 GPU 2 ({UUID})", **changes):
    facts = {
        "verdict": Verdict.FAIL,
        "observed": "2 rows can't be remapped",
        "expected": "no failed remapping",
        "remedy": "drain n3, reset GPU 2; replace it if that does not help",
        "blames": Part(kind="gpu", name=subject),
    }
    return Finding(check=check, subject=subject, **(facts | changes))


def slow(node="n3"):
    part = Part(kind="node", name=node, confidence="likely")
    return finding("slow_part", node, observed="4.1 GB/s > 2 partners, ≥ 60 % too slow", expected="", blames=part)


def test_it_says_check_part_what_was_seen_what_to_do_and_where_to_read_more():
    assert reason_of([finding()], "20261130-ab12", node="n3") == (
        "preflight:row_remap GPU 2 (GPU-2222aaaa): 2 rows cannot be remapped; wants no failed remapping; "
        "drain n3, reset GPU 2, replace it if that does not help [20261130-ab12, local]"
    )


def test_what_sinfo_shows_by_default_tells_the_check():
    assert reason_of([finding()], "r")[:20] == "preflight:row_remap "


def test_of_several_findings_the_surest_is_told_and_the_others_are_counted():
    text = reason_of([slow(), finding(), finding("xid")], "r", node="n3")
    assert text.startswith("preflight:row_remap GPU 2")
    assert text.endswith("; +2 more (xid, slow_part) [r, fabric]")


def test_the_order_of_findings_does_not_matter():
    assert reason_of([finding(), slow()], "r", node="n3") == reason_of([slow(), finding()], "r", node="n3")


def test_a_node_as_a_whole_is_not_named_again():
    assert reason_of([slow()], "r", node="n3").startswith(
        "preflight:slow_part node: 4.1 GB/s over 2 partners, at least 60"
    )


def test_the_reason_tells_whether_a_local_check_can_clear_it():
    assert kind_of(reason_of([finding()], "r")) == "local"
    assert kind_of(reason_of([slow()], "r")) == "fabric"
    assert kind_of(reason_of([finding(), slow()], "r")) == "fabric"
    assert kind_of(reason_of([finding("of_the_site")], "r", kind="fabric")) == "fabric"


def test_the_checks_that_a_node_alone_cannot_clear_are_those_that_use_measurements():
    assert {check.name for check in CHECKS if "measurements" in check.uses} == MEASURED


@pytest.mark.parametrize(
    "reason",
    [
        None,
        "",
        "Prolog error",
        "Not responding",
        "NHC: x",
        "preflight",
        "preflight: x",
        "preflight:",
        "xpreflight:xid y",
    ],
)
def test_a_reason_of_somebody_else_is_not_ours(reason):
    assert not is_ours(reason)
    assert (check_of(reason), kind_of(reason), run_of(reason)) == (None, None, None)


def test_a_reason_of_ours_whose_end_is_gone_is_cleared_by_nothing_local():
    assert check_of("preflight:xid GPU 3: x") == "xid"
    assert kind_of("preflight:xid GPU 3: x") == "fabric"


@settings(suppress_health_check=[HealthCheck.too_slow])  # of a busy machine
@given(texts=st.lists(st.text(max_size=400), min_size=6, max_size=6), kinds=st.sampled_from(["gpu", "node", "nic"]))
def test_whatever_the_texts_it_is_one_plain_short_line_that_can_be_read_back(texts, kinds):
    observed, expected, remedy, name, run, node = texts
    made = finding(
        observed=observed, expected=expected, remedy=remedy, blames=Part(kind=kinds, name=name), subject=name
    )
    text = reason_of([made, slow()], run, node=node or None)
    assert len(text) <= MAX_LETTERS
    assert plain(text) == text
    assert not set("\"'`\\$|<>&{}\n") & set(text)
    assert check_of(text) == "row_remap"
    assert kind_of(text) == "fabric"
    assert run_of(text)


def test_all_checks_that_a_reason_names_are_read_back_and_whether_these_are_all():
    others = [finding(check=name) for name in ("ecc_errors", "xid")]
    assert checks_of(reason_of([finding()], "r")) == ({"row_remap"}, True)
    assert checks_of(reason_of([finding(), finding(subject="n3 GPU 3")], "r")) == ({"row_remap"}, True)
    assert checks_of(reason_of([finding(), *others], "r")) == ({"row_remap", "ecc_errors", "xid"}, True)
    many = [finding(check=f"a_long_name_{letter}") for letter in "abcdef"]
    assert not checks_of(reason_of([finding(), *many], "r"))[1]
    assert checks_of("bad fan") == (frozenset(), True)


def test_a_long_text_loses_its_expectation_first_and_keeps_what_to_do():
    text = reason_of([finding(observed="seen " * 60)], "r", node="n3")
    assert len(text) > MAX_LETTERS - 12
    assert "wants" not in text
    assert "; drain n3, reset GPU 2" in text


def test_quotes_of_a_user_do_not_reach_a_shell():
    assert readable("process 1 ('; rm -rf / #\", user `x` $(y) \x1b[31m \n z)") == (
        "process 1 (, rm -rf / #, user x (y) ?[31m z)"
    )
