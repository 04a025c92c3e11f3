"""Verdicts of other tools: each form as the tool writes it, and what is none of them.

The shapes of dcgmi's reports follow NVIDIA/DCGM issue 139 (3.3) and facebookresearch/gcm 38 with DCGM's own tests (4.x); the texts in them are ours.
"""

import contextlib
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.discover.verdicts import SCHEMA, read_verdicts
from preflight.errors import ConfigError


def read(tmp_path, content, name="disk.txt", **arguments):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_verdicts(path, **arguments)


def brief(verdicts):
    return [(one.name, one.verdict, one.gpu) for one in verdicts]


def own(*entries, **changes):
    return json.dumps({"schema": SCHEMA, "origin": "acme-health", "verdicts": list(entries), **changes})


def dcgm(*tests, root="DCGM Diagnostic", **more):
    return json.dumps({root: {"test_categories": [{"category": "Hardware", "tests": list(tests)}]}, **more})


def test_our_own_form(tmp_path):
    found = read(
        tmp_path,
        own(
            {"name": "disk", "verdict": "WARNING", "text": "91 % full"},
            {"name": "gemm", "verdict": "fail", "gpu": 3},
            {"name": "fan", "verdict": "ok", "gpu": "GPU-1234"},
            {"name": "x", "verdict": "critical"},
            {"name": "y", "verdict": "skip"},
        ),
    )
    assert brief(found) == [
        *(("disk", "WARN", None), ("gemm", "FAIL", "3"), ("fan", "PASS", "GPU-1234"), ("x", "FAIL", None)),
        ("y", "SKIP", None),
    ]
    assert (found[0].origin, found[0].text) == ("acme-health", "91 % full")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (own({"name": "disk", "verdict": "great"}), "'great' is no verdict"),
        (own({"name": "disk"}), "missing required field `verdict`"),
        (own({"name": "disk", "verdict": "ok", "extra": 1}), "unknown field `extra`"),
        (own(origin=3), "Expected `str`"),
        ('{"schema": "other/1"}', "holds no verdicts that we know"),
        ("[1, 2]", "holds no verdicts that we know"),
        ("{", "is not JSON"),
        ("", "is empty"),
        ("  \n", "is empty"),
        ("hello world\n", "no output of a Nagios plug-in"),
        ('{"DCGM Diagnostic": {}}', "without tests"),
        ('{"DCGM Diagnostic": 3}', "its tests are missing"),
    ],
)
def test_what_is_wrong_with_a_file_is_told(tmp_path, content, words):
    with pytest.raises(ConfigError) as told:
        read(tmp_path, content)
    assert words in str(told.value)
    assert "disk.txt" in str(told.value)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ConfigError, match="can't be read"):
        read_verdicts(tmp_path / "none")


def test_dcgm_3_by_gpu(tmp_path):
    test = {
        "name": "PCIe",
        "results": [
            {"gpu_id": "0", "status": "Pass"},
            {"gpu_id": "1", "status": "Fail", "warnings": "replays on the bus"},
            {"gpu_id": "2", "status": "Pass"},
        ],
    }
    found = read(tmp_path, dcgm(None, test, root="DCGM GPU Diagnostic"))
    assert brief(found) == [("PCIe", "FAIL", "1"), ("PCIe", "PASS", None)]
    assert found[0].origin == "dcgmi diag"
    assert found[0].text == "replays on the bus"
    assert found[1].text == "GPU 0, 2"


def test_dcgm_3_of_all_gpus_together_blames_no_one_gpu(tmp_path):
    test = {"name": "Denylist", "results": [{"gpu_ids": "0,1,2", "status": "FAIL", "warnings": ["nouveau is loaded"]}]}
    (found,) = read(tmp_path, dcgm(test, root="DCGM GPU Diagnostic"))
    assert (found.verdict, found.gpu, found.text) == ("FAIL", None, "GPUs 0,1,2: nouveau is loaded")


def test_dcgm_4_by_entity_with_its_errors(tmp_path):
    test = {
        "name": "memory",
        "results": [
            {
                "entity_group": "GPU",
                "entity_group_id": 1,
                "entity_id": 5,
                "status": "Fail",
                "warnings": [{"warning": "bad cell", "error_id": 83, "error_severity": 2}],
            },
            {"entity_group": "GPU", "entity_id": 6, "status": "Pass"},
            {"entity_group": "CPU", "entity_id": 0, "status": "Skip", "info": ["not supported"]},
        ],
        "test_summary": {"status": "Fail"},
    }
    found = read(tmp_path, dcgm(test))
    assert brief(found) == [("memory", "FAIL", "5"), ("memory", "PASS", None), ("memory", "SKIP", None)]
    assert found[0].text == "bad cell (error 83)"
    assert found[2].text == "CPU 0; not supported"


def test_a_gpu_that_failed_only_in_company_is_unknown(tmp_path):  # NVIDIA/DCGM 145
    results = [{"gpu_id": "0", "status": "Fail", "warnings": "DBE"}, {"gpu_id": "1", "status": "Fail"}]
    found = read(tmp_path, dcgm({"name": "memory", "results": results}))
    assert brief(found) == [("memory", "FAIL", "0"), ("memory", "UNKNOWN", "1")]


def test_failures_without_any_reason_stay_failures(tmp_path):
    results = [{"gpu_id": str(index), "status": "Fail"} for index in range(2)]
    assert brief(read(tmp_path, dcgm({"name": "m", "results": results}))) == [("m", "FAIL", "0"), ("m", "FAIL", "1")]


def test_what_did_not_run_is_unknown(tmp_path):
    found = read(tmp_path, dcgm({"name": "a", "results": []}, {"name": "b", "results": [{"status": "Not Run"}]}))
    assert brief(found) == [("a", "UNKNOWN", None), ("b", "UNKNOWN", None)]
    broken = json.dumps({"DCGM Diagnostic": {"runtime_error": "GPU 0 is busy"}})
    assert brief(read(tmp_path, broken)) == [("run", "UNKNOWN", None)]


def test_a_summary_that_failed_alone_is_a_failure(tmp_path):
    test = {"name": "nvlink", "results": [], "test_summary": {"status": "Fail", "warnings": [{"warning": "down"}]}}
    (found,) = read(tmp_path, dcgm(test))
    assert (found.verdict, found.gpu, found.text) == ("FAIL", None, "down")


def test_a_line_before_the_report_does_no_harm(tmp_path):
    test = {"name": "PCIe", "results": [{"gpu_id": "0", "status": "Pass"}]}
    assert brief(read(tmp_path, f"WARNING: something\n{dcgm(test)}\n")) == [("PCIe", "PASS", None)]


def test_nagios_lines_with_codes(tmp_path):
    text = "# saved by cron\n0 DISK OK - 40 % free | /=40%;10;5\n1 load is high\n2 MCE CRITICAL: 3 errors\n3 no answer\n7 boom\n"
    found = read(tmp_path, text)
    assert brief(found) == [
        *(("DISK", "PASS", None), ("disk", "WARN", None), ("MCE", "FAIL", None)),
        *(("disk", "UNKNOWN", None), ("disk", "UNKNOWN", None)),
    ]
    assert found[0].text == "DISK OK - 40 % free"
    assert found[4].text == "exit code 7: boom"


def test_nagios_output_with_the_code_on_the_last_line(tmp_path):
    (found,) = read(tmp_path, "DISK CRITICAL - 2 % free | /=2%\nlong output\n2\n")
    assert (found.name, found.verdict, found.text) == ("DISK", "FAIL", "DISK CRITICAL - 2 % free")
    assert brief(read(tmp_path, "all is said to be OK\n1\n"))[0][1] == "WARN"  # the code counts


def test_nagios_output_alone_by_its_word_or_by_the_code_given_beside_it(tmp_path):
    assert brief(read(tmp_path, "CHECK_NTP WARNING: offset 2 s\n"))[0][1] == "WARN"
    assert brief(read(tmp_path, "offset 2 s\n", exit_code=2)) == [("disk", "FAIL", None)]
    assert brief(read(tmp_path, "offset 2 s\n", exit_code=139))[0][1] == "UNKNOWN"


def test_text_of_others_is_tamed(tmp_path):
    (found,) = read(tmp_path, "2 \x1b[31mred\x07 " + "x" * 5000)
    assert found.text.isprintable()
    assert len(found.text) <= 300


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["test_categories", "tests", "results", "status", "warnings", "name", "entity_id", "gpu_ids"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@given(JSON)
def test_no_report_of_dcgm_raises_anything_else(tmp_path_factory, document):
    path = tmp_path_factory.getbasetemp() / "dcgm.json"
    path.write_text(json.dumps({"DCGM Diagnostic": document}))
    with contextlib.suppress(ConfigError):
        read_verdicts(path)


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_else(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.bin"
    path.write_bytes(data)
    with contextlib.suppress(ConfigError):
        read_verdicts(path)


def test_a_pipe_does_not_hold_us(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="not a regular file"):
        read_verdicts(tmp_path / "pipe")
