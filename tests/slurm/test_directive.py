"""What a job may ask of preflight, and that a slip of the pen costs nothing."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.slurm.directive import DEGREES, Directive, read_directive

README = Path(__file__).parents[2] / "deploy/slurm/README.md"


def of(comment=None, extra=None, constraints=None):
    return read_directive(comment, extra, constraints)


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        (None, Directive()),
        ("", Directive()),
        ("my best run so far", Directive()),
        ("preflight is nice", Directive()),
        ("preflight: on", Directive(on=True)),
        ("Preflight: on", Directive(on=True)),
        ("preflight:off", Directive(on=False)),
        ("skip_checks; preflight: off; keep", Directive(on=False)),
        ("first line\npreflight: off\nlast line", Directive(on=False)),
        ("preflight: plan=llama70b", Directive(on=True, plan="llama70b")),
        ("preflight: plan=llama70b.toml", Directive(on=True, plan="llama70b")),
        ("preflight: tp = 8, pp=4", Directive(on=True, degrees={"tp": 8, "pp": 4})),
        (
            "preflight: on, plan=llama70b, tp=8, pp=4, ep=1, budget=120s",
            Directive(on=True, plan="llama70b", degrees={"tp": 8, "ep": 1, "pp": 4}, budget_s=120.0),
        ),
        ("preflight: budget=2m", Directive(on=True, budget_s=120.0)),
    ],
)
def test_a_comment_says_what_a_job_wants(comment, expected):
    assert of(comment) == expected
    assert of(extra=comment) == expected


@pytest.mark.parametrize(
    "comment",
    [
        "preflight:",
        "preflight: yes",
        "preflight: on, off",
        "preflight: on on",
        "preflight: off, tp=8",
        "preflight: plan=",
        "preflight: plan=/etc/shadow",
        "preflight: plan=../x",
        "preflight: plan=.hidden",
        "preflight: plan=a..b",
        "preflight: plan=a b",
        "preflight: tp=0",
        "preflight: tp=-1",
        "preflight: tp=eight",
        "preflight: tp=65537",
        "preflight: tp=8, tp=8",
        "preflight: tp=٣",
        "preflight: budget=soon",
        "preflight: budget=0s",
        "preflight: budget=2h",
        "preflight: exec=reboot",
        "preflight: on; preflight: off",
        "preflight: on preflight: off",
        "preflight: " + "x" * 5000,
    ],
)
def test_what_cannot_be_understood_is_a_problem_and_says_nothing_else(comment):
    found = of(comment)
    assert found.problem
    assert found == Directive(problem=found.problem)
    assert found.problem.isascii()
    assert found.problem.isprintable()


def test_comment_and_extra_must_agree():
    assert of("preflight: on", "preflight: on") == Directive(on=True)
    assert of("preflight: on", "preflight: off").problem is not None


@pytest.mark.parametrize("constraints", ["preflight", "a100&preflight", "[rack1|rack2]&preflight*2", "preflight|x"])
def test_a_constraint_asks_for_it(constraints):
    assert of(constraints=constraints).on is True


@pytest.mark.parametrize("constraints", [None, "", "a100", "preflight2", "no-preflight"])
def test_another_constraint_does_not(constraints):
    assert of(constraints=constraints) == Directive()


def test_the_comment_is_nearer_than_the_constraint():
    assert of("preflight: off", None, "preflight").on is False


@given(st.text(max_size=400), st.text(max_size=100), st.text(max_size=100))
def test_no_text_breaks_the_reading(comment, extra, constraints):
    for text in (comment, f"preflight: {comment}", f"preflight: on, {comment}"):
        found = read_directive(text, extra, constraints)
        if found.plan is not None:
            assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", found.plan)
        assert set(found.degrees) <= set(DEGREES)
        assert all(1 <= degree <= 65536 for degree in found.degrees.values())


@given(
    st.dictionaries(st.sampled_from(DEGREES), st.integers(1, 65536)),
    st.none() | st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,30}", fullmatch=True),
    st.sampled_from(["", "x; ", "a\n", "note: 3; "]),
)
def test_what_the_grammar_allows_is_read_as_it_was_meant(degrees, plan, before):
    items = [f"{name}={degree}" for name, degree in degrees.items()] + ([f"plan={plan}"] if plan else [])
    found = of(f"{before}preflight: {', '.join(['on', *items])}; after")
    assert found == Directive(on=True, plan=plan, degrees=degrees)
