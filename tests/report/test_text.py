"""Text from elsewhere can't steer a terminal."""

from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.report.text import clean, columns, hang, shorten


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
    assert letters == (clean(text).replace(" ", "") or ("-" if not text else ""))


def test_numbers_stand_to_the_right_and_names_to_the_left():
    assert columns([["a", "1"], ["bcd", "10"]], indent=0) == ["a     1", "bcd  10"]


def test_a_cut_is_marked():
    assert shorten("abcdefgh", 6) == "abc..."
