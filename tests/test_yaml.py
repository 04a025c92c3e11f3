"""YAML of others: plain values only, and no file that builds objects, fills the memory or ends in a traceback."""

import builtins
import time

import pytest

from preflight.errors import ConfigError
from preflight.formats import MAX_YAML_DEPTH, read_yaml


@pytest.fixture
def read(tmp_path):
    def read_text(text):
        path = tmp_path / "file.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_yaml(path)

    return read_text


def test_values_come_as_plain_ones(read):
    assert read("a: 1\nb: [x, 2.5, true, null]\nc:\n  d: 'text'\n") == {
        "a": 1,
        "b": ["x", 2.5, True, None],
        "c": {"d": "text"},
    }
    assert read("") is None
    assert read("# nothing but a comment\n") is None
    assert read(b"\xef\xbb\xbfa: 1\n") == {"a": 1}
    assert read("day: 2026-08-22\n") == {"day": "2026-08-22"}


def test_anchors_and_merge_keys_are_followed(read):
    assert read("base: &b {tp: 8, pp: 2}\njob: {<<: *b, pp: 4}\n") == {
        "base": {"tp": 8, "pp": 2},
        "job": {"tp": 8, "pp": 4},
    }


def test_a_class_tag_is_passed_over_and_nothing_is_built(read, tmp_path):
    text = "model: !!python/object:some.Config {tp: 8}\nwhat: !Name [1, 2]\nraw: !!python/name:os.system ''\n"
    assert read(text) == {"model": {"tp": 8}, "what": [1, 2], "raw": ""}
    target = tmp_path / "made"
    assert read(f"x: !!python/object/apply:os.mkdir ['{target}']\n") == {"x": [str(target)]}
    assert not target.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: [1, 2\n", "line 3"),
        ("a: 1\na: 2\n", "line 2: 'a' is given twice"),
        ("a: 1\n---\nb: 2\n", "line 2"),
        ("a: &x [1, *x]\n", "alias points into itself"),
        ("a: *nobody\n", "line 1"),
        ("a: \x00\n", "is not YAML that we take"),
        (b"a: \xff\xfe\n", "is not UTF-8 text"),
        ("\t- a\n", "line 1"),
        ("? [a]\n: 1\n", "is not YAML that we take: line 1"),
        ("a: !!int nine\n", "is not YAML that we take"),
    ],
)
def test_what_is_no_yaml_is_refused_with_its_line(read, text, message):
    with pytest.raises(ConfigError, match=r"file\.yaml: ") as caught:
        read(text)
    assert message in str(caught.value)


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_deep_nesting_is_refused_and_does_not_end_the_process(read, opening):
    with pytest.raises(ConfigError, match="nest"):
        read(opening * 100_000)
    assert read("[" * MAX_YAML_DEPTH + "]" * MAX_YAML_DEPTH)


def test_a_few_lines_of_aliases_that_stand_for_billions_of_values_are_refused_at_once(read):
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    began = time.perf_counter()
    with pytest.raises(ConfigError, match="more than 1000000 values"):
        read("\n".join(lines))
    assert time.perf_counter() - began < 1


def test_a_missing_pyyaml_says_what_to_install(read, monkeypatch):
    real = builtins.__import__

    def without_yaml(name, *rest):
        if name == "yaml":
            raise ImportError("No module named 'yaml'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_yaml)
    with pytest.raises(ConfigError, match="PyYAML is not installed") as caught:
        read("a: 1\n")
    assert caught.value.remedy == "install PyYAML: pip install 'cluster-preflight[import]'"
