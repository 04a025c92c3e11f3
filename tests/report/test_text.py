"""Text from elsewhere can't steer a terminal."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.report.text import cells, clean, columns, hang, pad, shorten, table


@given(st.text())
@settings(max_examples=70)
def test_clean_text_prints_and_is_one_line(text):
    assert clean(text).isprintable()


def test_escape_sequences_and_direction_marks_are_spelled_out():
    assert clean("a\x1b[31mb\nc\u202ed") == "a\\x1b[31mb c\\u202ed"


def test_readable_text_is_left_alone():
    assert clean("GPU 3: température 90 °C") == "GPU 3: température 90 °C"


@given(st.text(alphabet="ab -,", max_size=200), st.integers(0, 120))
@settings(max_examples=60)
def test_a_wrapped_paragraph_keeps_every_letter(text, width):
    lines = hang("label ", text, width=width)
    letters = "".join(lines).removeprefix("label ").replace(" ", "")
    assert letters == (clean(text).replace(" ", "") or "-")


def test_numbers_stand_to_the_right_and_names_to_the_left():
    assert columns([["a", "1"], ["bcd", "10"]], indent=0) == ["a     1", "bcd  10"]


def test_a_cut_is_marked():
    assert shorten("abcdefgh", 6) == "abc..."


@pytest.mark.parametrize("char", ["\u0301", "\u20dd", "\u3164", "\u2800", "\u05d0", "\u0661", "\u200b", "\x9b"])
def test_marks_that_pile_up_letters_that_show_nothing_and_those_from_the_right_are_spelled_out(char):
    assert clean(f"x1{char}2").isascii()


def test_wide_letters_count_twice_in_tables_paragraphs_and_cuts():
    assert cells("節a点") == 5
    assert pad("節", 4) == "節  "
    assert pad("節", 4, right=True) == "  節"
    assert columns([["節", "1"], ["abc", "2"]], indent=0) == ["節   1", "abc  2"]
    assert cells(shorten("節" * 20, 9)) <= 9


@given(st.text(alphabet="節点a ", max_size=90), st.integers(22, 60))
@settings(max_examples=40, deadline=None)
def test_no_paragraph_is_wider_than_it_may_be(text, width):
    lines = hang("", text, width=width)
    assert max(map(cells, lines)) <= width
    assert "".join(lines).replace(" ", "") == (text.replace(" ", "") or "-")


def test_a_table_that_does_not_fit_becomes_a_paragraph_for_each_row():
    rows = [["who", "rate", "note"], ["n1", "10 GB/s", ""], ["n2", "11 GB/s", "slow"]]
    assert table(rows, width=40)[0] == "  who     rate  note"
    assert table(rows, width=19) == ["  n1: rate 10 GB/s", "  n2: rate 11 GB/s,", "  note slow"]
