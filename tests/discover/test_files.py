"""Small files of the kernel: whatever is in them, the answer is a figure that can be, or None."""

import pytest

from preflight.discover.files import read_int, to_int


@pytest.mark.parametrize(
    ("text", "base", "number"),
    [
        ("12", 10, 12),
        ("-1", 10, -1),
        ("0x1f", 16, 31),
        (str(2**64 - 1), 10, 2**64 - 1),
        (str(2**64), 10, None),
        ("f" * 5000, 16, None),
        ("9" * 5000, 10, None),
        ("NaN", 10, None),
        ("", 10, None),
    ],
)
def test_a_number_beyond_64_bits_is_no_number_of_the_kernel(tmp_path, text, base, number):
    assert to_int(text, base) == number
    (tmp_path / "file").write_text(text + "\n")
    assert read_int(tmp_path / "file", base) == number
