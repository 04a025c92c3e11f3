"""Units in and out."""

import pytest

from preflight.model.units import (
    parse_bytes,
    parse_count,
    parse_seconds,
    show_bytes,
    show_line_rate,
    show_rate,
    show_seconds,
)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_count, "70B", 70 * 10**9),
        (parse_count, "1.5T", 1_500_000_000_000),
        (parse_count, "80", 80),
        (parse_bytes, "80GB", 80 * 10**9),
        (parse_bytes, "64 MiB", 2**26),
        (parse_seconds, "60s", 60),
        (parse_seconds, "250ms", 0.25),
        (parse_seconds, "5m", 300),
    ],
)
def test_numbers_with_units_are_read(parse, text, value):
    assert parse(text) == pytest.approx(value)


@pytest.mark.parametrize("parse", [parse_count, parse_bytes, parse_seconds])
@pytest.mark.parametrize("text", ["", "GB", "-1", "1 parsec", "1e3", "nan", "1GB2", "٣s"])
def test_what_is_no_number_with_a_known_unit_is_refused(parse, text):
    with pytest.raises(ValueError):
        parse(text)


def test_figures_are_shown_with_three_digits_that_mean_something():
    assert show_bytes(35_000_000_000) == "35.0 GB"
    assert show_bytes(2**22) == "4.19 MB"
    assert show_bytes(12) == "12 B"
    assert show_rate(412.3e9) == "412 GB/s"
    assert show_rate(1.234e9) == "1.23 GB/s"
    assert show_rate(0.9999e9) == "1.00 GB/s"
    assert show_rate(0.44e9) == "0.440 GB/s"
    assert show_rate(25e6) == "25.0 MB/s"
    assert show_rate(0.25e6) == "0.250 MB/s"
    assert show_rate(12_300) == "12.3 kB/s"
    assert show_rate(0) == "0 B/s"
    assert show_seconds(0.0123) == "12.3 ms"
    assert show_seconds(95) == "1 min 35 s"


def test_line_rates_are_shown_as_ports_are_called():
    assert show_line_rate(50e9) == "400 Gbit/s"
    assert show_line_rate(12_500_000) == "0.1 Gbit/s"
