"""Units: base units inside (bytes, seconds, bytes per second), decimal prefixes when printing (1 GB = 10^9 bytes).

NCCL's tools print GB/s as 10^9 bytes per second, and so do we; GPU memory is given in decimal GB in plan files, as on
the vendors' data sheets.
"""

import re

KILO, MEGA, GIGA, TERA = 10**3, 10**6, 10**9, 10**12
KIB, MIB, GIB = 2**10, 2**20, 2**30

LEAST_OF_UNIT = 0.1  # of a unit of rates, below which the next smaller one is taken

_COUNT_SUFFIX = {"": 1, "K": KILO, "M": MEGA, "B": GIGA, "G": GIGA, "T": TERA}
_BYTES_SUFFIX = {"": 1, "B": 1, "KB": KILO, "MB": MEGA, "GB": GIGA, "TB": TERA, "KIB": KIB, "MIB": MIB, "GIB": GIB}
_SECONDS_SUFFIX = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def _split(text: str) -> tuple[float, str]:
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    if match is None:
        raise ValueError(f"{text!r} is not a number with a unit")
    return float(match[1]), match[2]


def parse_count(text: str) -> int:
    """A number of things: "70B" is 70e9, "1.5T" is 1.5e12. Raises ValueError."""
    value, suffix = _split(text)
    if suffix.upper() not in _COUNT_SUFFIX:
        raise ValueError(f"{text!r}: unit {suffix!r} is not one of K, M, B, T")
    return round(value * _COUNT_SUFFIX[suffix.upper()])


def parse_bytes(text: str) -> int:
    """A size: "80GB" is 80e9 bytes, "64MiB" is 2^26. Raises ValueError."""
    value, suffix = _split(text)
    if suffix.upper() not in _BYTES_SUFFIX:
        raise ValueError(f"{text!r}: unit {suffix!r} is not one of B, KB, MB, GB, TB, KiB, MiB, GiB")
    return round(value * _BYTES_SUFFIX[suffix.upper()])


def parse_seconds(text: str) -> float:
    """A duration: "60s", "5m", "250ms", "60". Raises ValueError."""
    value, suffix = _split(text)
    if suffix not in _SECONDS_SUFFIX:
        raise ValueError(f"{text!r}: unit {suffix!r} is not one of ms, s, m, h")
    return value * _SECONDS_SUFFIX[suffix]


def show_bytes(size_bytes: float) -> str:
    """35000000000 -> "35.0 GB", 4194304 -> "4.19 MB"."""
    for unit, name in ((TERA, "TB"), (GIGA, "GB"), (MEGA, "MB"), (KILO, "kB")):
        if abs(size_bytes) >= unit:
            return f"{_digits(size_bytes / unit)} {name}"
    return f"{size_bytes:.0f} B"


def show_rate(bytes_per_s: float) -> str:
    """Three digits, in GB/s down to a tenth of one: 412300000000.0 -> "412 GB/s", 1.23e9 -> "1.23 GB/s", 0.44e9 -> "0.440 GB/s", 12.3e6 -> "12.3 MB/s"."""
    for unit, name in ((GIGA, "GB/s"), (MEGA, "MB/s"), (KILO, "kB/s")):
        if abs(bytes_per_s) >= LEAST_OF_UNIT * unit:
            return f"{three_digits(bytes_per_s / unit)} {name}"
    return f"{bytes_per_s:.0f} B/s"


def three_digits(value: float) -> str:
    """A number from a tenth up with three digits: 0.44 -> "0.440", 1.234 -> "1.23", 412.3 -> "412"."""
    return f"{value:.3f}" if abs(value) < 0.9995 else _digits(value)


def show_line_rate(bytes_per_s: float) -> str:
    """As ports and cables are called: 50000000000 -> "400 Gbit/s"."""
    return f"{bytes_per_s * 8 / GIGA:g} Gbit/s"


def show_seconds(duration_s: float) -> str:
    """0.0123 -> "12.3 ms", 95 -> "1 min 35 s", 9000 -> "2.5 h"."""
    if duration_s < 1e-3:
        return f"{duration_s * 1e6:.0f} us"
    if duration_s < 1:
        return f"{_digits(duration_s * 1e3)} ms"
    if duration_s < 60:
        return f"{_digits(duration_s)} s"
    if duration_s >= 5400:
        return f"{duration_s / 3600:.1f} h"
    return f"{int(duration_s // 60)} min {int(duration_s % 60)} s"


def _digits(value: float) -> str:
    """Three digits that mean something."""
    magnitude = abs(value)
    return f"{value:.0f}" if magnitude >= 100 else f"{value:.1f}" if magnitude >= 10 else f"{value:.2f}"
