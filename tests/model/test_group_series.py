"""Repeats of groups are sorted by what was sent and how."""

import msgspec

from preflight.model import Failure, Measurement
from preflight.model.group_series import series_of
from tests.builders import make_measurement


def timed(**probe) -> Measurement:
    facts = {"subject": "ep0", "axis": "ep", "collective": "all_to_all", "algbw_bytes_per_s": 40e9}
    return make_measurement((0, 1, 2, 3), **{**facts, **probe})


def changed(measurement, **probe) -> Measurement:
    return msgspec.structs.replace(measurement, probe=msgspec.structs.replace(measurement.probe, **probe))


def test_sizes_modes_collectives_and_splits_are_series_of_their_own():
    found = series_of(
        [
            timed(),
            timed(repeat=1),
            timed(size_bytes=2**20),
            timed(mode="mixed"),
            timed(collective="all_gather"),
            changed(timed(), split=(0.4, 0.2, 0.2, 0.2)),
        ]
    )
    assert [len(series.rates) for series in found] == [2, 1, 1, 1, 1]
    assert found[0].typical == 30e9
    assert found[0].message == ("ep", "all_to_all", 2**26)


def test_failures_pairs_and_the_search_for_a_culprit_are_left_out():
    failed = msgspec.structs.replace(timed(), samples=(), failure=Failure(kind="error", text="t"))
    assert series_of([failed, make_measurement((0, 1)), changed(timed(), attempt=1)]) == ()
