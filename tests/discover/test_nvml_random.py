"""Whatever numbers a library writes and whatever it refuses, the reading comes about and can be saved and loaded."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.discover.nvml import read_facts
from preflight.discover.nvml_reading import NvmlReading, decode
from preflight.model import from_json, to_json
from tests.fakes import _DEVICE, FakeGpu, FakeLink, FakeNvml, FakeProcess

U8, U32, U64 = st.integers(0, 2**8 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
CODES = st.sampled_from([2, 3, 4, 7, 13, 15, 16, 25, 26, 999, 4321])
LINK = st.builds(
    FakeLink,
    active=st.booleans(),
    far_kind=U32,
    far_id=st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=16),
    far_port=U32,
    state=st.none() | U32,
    counters=st.dictionaries(st.sampled_from([161, 163, 206, 215, 221, 147]), U64, max_size=3),
)
GPU = st.builds(
    FakeGpu,
    uuid=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=10),
    links=st.none() | st.lists(LINK, max_size=3).map(tuple),
    link_version=U32,
    link_mb_per_s=U32,
    memory_bytes=U64,
    fabric=st.none() | st.tuples(U8, U32, st.binary(min_size=16, max_size=16), U32),
    fabric_health=st.tuples(U32, U8),
    fabric_versions=st.sampled_from([(1,), (2,), (3,), ()]),
    mig=st.none() | U32,
    mig_uuids=st.lists(st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=5), max_size=3).map(
        tuple
    ),
    ecc_counts=st.tuples(U64, U64, U64, U64),
    remapped=st.none() | st.tuples(U32, U32, U32, U32),
    retired=st.none() | st.tuples(st.integers(0, 3), st.integers(0, 3), U32),
    recovery=st.none() | U32,
    reasons=st.none() | U64,
    throttled_ns=st.dictionaries(st.sampled_from([74, 81, 271]), U64),
    limits_mw=st.none() | st.tuples(U32, U32, U32, U32),
    temperature=st.none() | I32,
    margin=st.none() | I32,
    tlimits=st.none() | st.tuples(I32, I32),
    pcie=st.none() | st.tuples(U32, U32, U32, U32, U32),
    processes=st.lists(st.builds(FakeProcess, U32, st.none() | U64), max_size=3).map(tuple),
    cpus=st.none() | U64,
    node=st.none() | st.integers(0, 900),
    own_node=st.none() | I32,
    errors=st.dictionaries(st.sampled_from(sorted(_DEVICE)), CODES, max_size=4),
    field_errors=st.dictionaries(st.sampled_from([91, 164, 165, 230, 82, 74]), CODES, max_size=3),
)


@given(gpus=st.lists(GPU, max_size=3), ancestor=U32, p2p=st.dictionaries(st.integers(0, 4), U32))
@settings(max_examples=80, deadline=None)
def test_whatever_the_library_writes_the_reading_can_be_saved_and_loaded(gpus, ancestor, p2p):
    # GPUs that are alike in everything would be one to the stand-in
    gpus = [gpu for i, gpu in enumerate(gpus) if gpu not in gpus[:i]]
    with pytest.MonkeyPatch.context() as patch:
        FakeNvml(gpus, ancestor=ancestor, p2p=p2p).install(patch)
        reading = decode(json.dumps(read_facts()).encode())
    assert len(reading.gpus) == len(gpus)
    assert from_json(to_json(reading), NvmlReading) == reading
    for gpu in reading.gpus:
        assert not any("understood" in problem.text for problem in gpu.problems)
