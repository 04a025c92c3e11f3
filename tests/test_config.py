"""The site's file: whatever stands in it, it is taken or refused in words; never half obeyed, never a traceback."""

import os

import pytest

from preflight.config import SECTIONS, Site, read_config
from preflight.errors import ConfigError

HUGE = "0x" + "f" * 8000
VALUES = (
    *("0", "-1", "1e400", "nan", "-inf", "true", "9223372036854775807", "9223372036854775808", HUGE, f"[{HUGE}]"),
    *('""', '" "', '"\\u0000"', '"/a\\u0000b"', '"\\u001b[2J"', '"/' + "../" * 2000 + '"', '"' + "x" * 8000 + '"'),
    *("[]", "[[]]", "[1]", "{}", "{a = {b = 1}}", '["/x\\u0000"]', '["root", "a\\nb"]', "1979-05-27", "07:32:00"),
    *('"nan"', '"infh"', '"1e308h"', '"-5s"', '["PATH"]', '["=x"]'),
)


def read(folder, content):
    path = folder / "preflight.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(0o644)
    try:
        return read_config(path)
    except ConfigError as error:
        told = str(error)
    assert len(told) < 1000
    return told


@pytest.mark.parametrize("section", SECTIONS)
def test_no_value_of_any_key_breaks_the_reading(tmp_path, section):
    for key in (*SECTIONS[section][1], "unknown", f'"{"k" * 3000}"', '"\\u0000"'):
        for value in VALUES:
            assert isinstance(read(tmp_path, f"[{section}]\n{key} = {value}\n"), str | Site)


@pytest.mark.parametrize("section", [*SECTIONS, "other", '"\\u0000"'])
def test_what_is_no_section_is_refused(tmp_path, section):
    for value in VALUES:
        told = read(tmp_path, f"{section} = {value}\n")
        assert isinstance(told, str) or value == "{}"


@pytest.mark.parametrize(
    "content",
    [
        *(b"\0", b"\xff\xfe[", b"[slurm", b'[slurm]\nx="""', b"a." * 4000 + b"=1", b"[" * 8000, b"[[slurm]]\n"),
        *(b"x=[" * 2600, b"x={a=" * 1300, b"[slurm]\nenforce=true\nenforce=false\n", b"[slurm]\n[slurm]\n"),
        b"#" * 200_000,
    ],
    ids=lambda content: content[:12].hex(),
)
def test_what_is_no_toml_is_refused(tmp_path, content):
    assert isinstance(read(tmp_path, content), str)


@pytest.mark.parametrize("what", ["missing", "folder", "pipe", "device", "link to nothing", "circle", "writable"])
def test_a_file_that_is_none_of_the_sites_is_refused(tmp_path, what):
    path = tmp_path / "preflight.toml"
    {
        "missing": lambda: None,
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path, 0o600),
        "device": lambda: path.symlink_to("/dev/zero"),
        "link to nothing": lambda: path.symlink_to(tmp_path / "nothing"),
        "circle": lambda: path.symlink_to(path),
        "writable": lambda: (path.write_text(""), path.chmod(0o666)),
    }[what]()
    with pytest.raises(ConfigError):
        read_config(path)


@pytest.mark.root
def test_a_file_of_another_user_is_refused(tmp_path):
    path = tmp_path / "preflight.toml"
    path.write_text("[slurm]\nenforce = true\n")
    os.chown(path, 1234, 1234)
    with pytest.raises(ConfigError, match="1234"):
        read_config(path)
