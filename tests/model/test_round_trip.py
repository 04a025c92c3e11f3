"""Every noun that is saved comes back equal from its JSON."""

import enum
import functools
import types
import typing
from collections.abc import Callable, Mapping

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preflight import model
from preflight.model import Check, Noun, Report, Strict, from_json, to_json

# Check carries a function, so it is never saved; Noun and Strict are only what the others have in common
NOUNS = [
    kind
    for kind in (getattr(model, name) for name in model.__all__)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in (Check, Noun, Strict)
]

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)  # JSON holds no lone surrogates
NUMBERS = {
    str: TEXT,
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    type(None): st.none(),
    object: TEXT,
}


def values_of(kind: typing.Any) -> st.SearchStrategy:  # noqa: PLR0911 - one line for each kind of type
    """Anything of an annotated type."""
    if kind in NUMBERS:
        return NUMBERS[kind]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return nouns_of(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(list(kind))
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(values_of, arguments))
    if origin is tuple and arguments[-1] is Ellipsis:
        # a record inside its own kind: at most one a level, or the drawing would not come to an end
        return st.lists(values_of(arguments[0]), max_size=1 if arguments[0] is model.Culprit else 2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, arguments))
    if origin in (dict, Mapping):
        return st.dictionaries(*map(values_of, arguments), max_size=2)
    raise AssertionError(f"the test doesn't know how to make a {kind}: teach it")


@functools.cache
def nouns_of(kind: type) -> st.SearchStrategy:
    """Any record of the kind, every field drawn."""
    hints = typing.get_type_hints(kind)
    fields = {name: st.deferred(lambda n=name: values_of(hints[n])) for name in kind.__struct_fields__}
    return st.builds(kind, **fields)


@pytest.mark.parametrize("kind", NOUNS, ids=lambda kind: kind.__name__)
def test_a_noun_comes_back_equal_from_its_json(kind):
    @given(nouns_of(kind))
    @settings(max_examples=8 if kind is Report else 20, deadline=None, suppress_health_check=list(HealthCheck))
    def holds(noun):
        assert from_json(to_json(noun), kind) == noun

    holds()


@pytest.mark.parametrize("kind", NOUNS, ids=lambda kind: kind.__name__)
def test_a_noun_is_frozen(kind):
    assert kind.__struct_config__.frozen


def test_what_is_unknown_is_left_out_and_comes_back_as_none():
    gpu = model.Gpu(index=0)
    assert b"uuid" not in to_json(gpu)
    assert from_json(to_json(gpu), model.Gpu).uuid is None


def test_a_field_of_a_newer_version_is_ignored_in_a_noun_and_refused_in_what_people_write():
    assert from_json(b'{"index": 0, "aura": 1}', model.Gpu) == model.Gpu(index=0)
    with pytest.raises(msgspec.ValidationError, match="aura"):
        from_json(b'{"value": 0, "source": "x", "aura": 1}', model.Expected)


def test_the_judge_of_a_check_is_a_function_and_nothing_that_is_saved_holds_one():
    assert typing.get_origin(typing.get_type_hints(Check, vars(model))["judge"]) is Callable
    assert Check not in NOUNS
