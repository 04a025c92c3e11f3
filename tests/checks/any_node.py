"""Random nodes for tests of all checks: a healthy machine in which some facts, of any depth, are replaced by any value of their type, or by None."""

from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

from preflight.model import Node

INTS = st.sampled_from([0, 1, 2, 3, 7, 8, 18, 64, 255, 65535, 2**31 - 1, 2**32 - 1, 2**53, 2**63 - 1, 2**64 - 1])
FLOATS = st.sampled_from([0.0, 0.5, 1.0, 1e-300, 700.0, 1e18, 1e308, -1.0, -1e308])
ODD = (
    "",
    "x",
    "N/A",
    "0",
    "-1",
    "²",
    "٣",
    "9" * 30,
    "1" * 5000,
    "a/b",
    "../..",
    "\x00",
    "\x1b[31m",
    "\n",
    "é\u202e",
    "{}",
    "%s{0}",
)
LIKE_OURS = (
    "none",
    "=",
    "[",
    ",",
    "0-3,8-",
    "GPU-",
    "MIG-",
    "node0",
    "pci0000:10",
    "0000:40:00.0",
    "0000:41:00.0",
    "mlx5_0",
    "^mlx5",
)
TEXTS = st.sampled_from([*ODD, *LIKE_OURS, "NVIDIA H100 80GB HBM3", "NVIDIA L40S", "NCCL_IB_HCA", "NCCL_P2P_DISABLE"])
_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: INTS,
    float: FLOATS,
    str: TEXTS,
    type(None): st.none(),
}


def any_value(kind: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """Any value of a type that nouns use."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _any_noun(kind, depth)
    return _any_of(get_origin(kind), get_args(kind), depth)


def _any_of(origin: Any, inner: tuple[Any, ...], depth: int) -> st.SearchStrategy[Any]:
    if origin in (Union, UnionType):
        return st.one_of([any_value(one, depth) for one in inner])
    if origin is Literal:
        return st.sampled_from(inner)
    if origin is dict:
        return st.dictionaries(any_value(inner[0], depth), any_value(inner[1], depth), max_size=2)
    assert origin is tuple
    assert inner[1:] == (...,)
    return st.lists(st.deferred(lambda: any_value(inner[0], depth + 1)), max_size=max(0, 3 - depth)).map(tuple)


def _any_noun(kind: Any, depth: int) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind)

    def of_fields(*, required: bool) -> dict[str, st.SearchStrategy[Any]]:
        names = [field.name for field in msgspec.structs.fields(kind) if field.required is required]
        return {name: st.deferred(lambda name=name: any_value(hints[name], depth + 1)) for name in names}

    facts = st.fixed_dictionaries(of_fields(required=True), optional=of_fields(required=False))
    return facts.map(lambda told: kind(**told))


def changed(draw: st.DrawFn, value: Any, kind: Any) -> Any:
    """The value with one thing somewhere in it replaced, or left out, or there twice."""
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(value, msgspec.Struct):
        name = draw(st.sampled_from([field.name for field in msgspec.structs.fields(type(value))]))
        fact = changed(draw, getattr(value, name), get_type_hints(type(value))[name])
        return msgspec.structs.replace(value, **{name: fact})
    if origin in (Union, UnionType) and value is not None and draw(st.integers(0, 5)):
        kinds = [one for one in inner if one is not type(None)]
        return changed(draw, value, kinds[0]) if len(kinds) == 1 else draw(any_value(kind))
    if origin is tuple and value and draw(st.integers(0, 4)):
        place = draw(st.integers(0, len(value) - 1))
        how = draw(st.sampled_from(["in it", "in it", "in it", "without", "twice"]))
        if how == "in it":
            return (*value[:place], changed(draw, value[place], inner[0]), *value[place + 1 :])
        return (*value[:place], *value[place + 1 :]) if how == "without" else (*value, value[place])
    if origin is dict and value and draw(st.booleans()):
        key = draw(st.sampled_from(sorted(value)))
        return {**value, key: changed(draw, value[key], inner[1])}
    return draw(any_value(kind))


@st.composite
def nodes_like(draw: st.DrawFn, machines: list[Node], most: int = 3) -> tuple[Node, ...]:
    """Up to `most` nodes with names of their own: healthy machines with a few facts changed."""
    found = []
    for number in range(draw(st.integers(1, most))):
        node = draw(st.sampled_from(machines))
        for _ in range(draw(st.integers(1, 6))):
            node = changed(draw, node, Node)
        found.append(msgspec.structs.replace(node, name=f"node{number}"))
    return tuple(found)
