"""Values that should be shared: the classes, who is in them, who is the majority."""

from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.model.classes import MAX_SHOWN, Classes, classify, join_near


def classes_of(*values):
    names = [f"n{i}" for i in range(len(values))]
    of = dict(zip(names, values, strict=True))
    return classify(names, of.get, str)


def test_the_largest_class_comes_first_and_unknown_ones_stand_apart():
    classes = classes_of("a", "b", "b", None, "b")
    assert classes.members == {"b": ("n1", "n2", "n4"), "a": ("n0",)}
    assert classes.unknown == ("n3",)
    assert classes.majority == "b"
    assert classes.unlike == ("n0",)
    assert classes.text() == "b on n[1-2,4]; a on n0; unknown on n3"


def test_half_of_them_are_no_majority_and_nobody_is_unlike():
    classes = classes_of("a", "a", "b", "b")
    assert classes.majority is None
    assert classes.unlike == ()
    assert not classes.uniform


def test_nothing_known_is_uniform_and_has_no_majority():
    assert classes_of(None, None).uniform
    assert classes_of(None, None).majority is None
    assert Classes({}).text() == ""


def test_a_value_of_false_or_zero_is_a_value():
    assert classes_of(False, False, True).majority is False
    assert classes_of(False, False, True).unlike == ("n2",)


def test_a_sentence_lists_few_classes_and_counts_the_rest():
    text = classes_of(*range(MAX_SHOWN + 4)).text()
    assert text.endswith("; 4 more values on 4")


def test_near_numbers_count_as_the_commonest_of_them():
    joined = join_near([100, 101, 101, 150], 0.02)
    assert joined == {100: 101, 101: 101, 150: 150}
    assert join_near([], 0.02) == {}
    assert join_near([5, 6], 0.0) == {5: 5, 6: 6}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(0, 4)), max_size=40))
def test_everyone_is_in_exactly_one_place(values):
    classes = classes_of(*values)
    listed = [name for names in classes.members.values() for name in names] + list(classes.unknown)
    assert sorted(listed) == sorted(f"n{i}" for i in range(len(values)))
    assert classes.num_known == len(values) - values.count(None)
