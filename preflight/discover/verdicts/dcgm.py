"""What `dcgmi diag -j` prints.

DCGM 3: {"DCGM GPU Diagnostic": {"test_categories": [{"category": ..., "tests": [{"name": ..., "results": [{"gpu_id": "0", "status": "Pass", "warnings": ...}]}]}]}}, where a deployment
test has one result with "gpu_ids": "0,1,2". DCGM 4: "DCGM Diagnostic", and results name "entity_group" and "entity_id", with a "test_summary" beside them. Sources: NVIDIA/DCGM,
nvvs/include/NvvsJsonStrings.h (names of the fields in 3 and 4), issue 139 (a report of 3.3), facebookresearch/gcm 38 (what changed in 4).

One failing GPU can mark all GPUs of its group as failed (NVIDIA/DCGM 145): a GPU that is failed without a reason, in a test that gives reasons for others, is unknown.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from preflight.discover.verdicts.words import OurVerdict, one_line, verdict_of
from preflight.errors import ConfigError
from preflight.model import OutsideVerdict

ORIGIN = "dcgmi diag"
_ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")


class _Result(NamedTuple):
    """One result of one test. `gpu`: None if it is about no one GPU; `what`: of what it is then ("CPU 0", "GPUs 0,1")."""

    verdict: OurVerdict
    text: str
    gpu: str | None = None
    what: str = ""


def is_dcgm(document: Any) -> bool:
    """Whether this is a report of DCGM's."""
    return isinstance(document, dict) and any(name in document for name in _ROOTS)


def read_dcgm(document: dict[str, Any], source: str) -> tuple[OutsideVerdict, ...]:
    """The verdicts of a report: each entity that did not pass by itself, those that passed together. Raises ConfigError if the report has no tests."""
    root = next(document[name] for name in _ROOTS if name in document)
    if not isinstance(root, dict):
        raise ConfigError(source, "is no report of dcgmi diag: its tests are missing")
    found = [
        OutsideVerdict(
            origin=ORIGIN, name="run", verdict="UNKNOWN", text=one_line(f"the diagnostic did not run: {said}")
        )
        for said in _texts([part.get(key) for part in (document, root) for key in ("runtime_error", "error")])
    ]
    categories = root.get("test_categories")
    for category in categories if isinstance(categories, list) else ():
        tests = category.get("tests") if isinstance(category, dict) else None
        for test in tests if isinstance(tests, list) else ():
            if isinstance(test, dict):
                found += _test(test)
    if not found:
        raise ConfigError(source, "is a report of dcgmi diag without tests")
    return tuple(found)


def _test(test: dict[str, Any]) -> Iterator[OutsideVerdict]:
    name = one_line(str(test.get("name") or "test without a name"), 80)
    given = test.get("results")
    results = [_result(entry) for entry in given if isinstance(entry, dict)] if isinstance(given, list) else []
    summary = test.get("test_summary")
    if isinstance(summary, dict) and not any(result.verdict == "FAIL" for result in results):
        whole = _result(summary)
        if whole.verdict == "FAIL" or not results:
            results.append(whole)
    if not results:
        results = [_Result("UNKNOWN", "no result")]
    reasons = any(result.verdict == "FAIL" and result.text for result in results)
    together: dict[OurVerdict, list[_Result]] = {}
    for result in results:
        if result.verdict in {"PASS", "SKIP"}:
            together.setdefault(result.verdict, []).append(result)
        elif result.verdict == "FAIL" and result.gpu is not None and reasons and not result.text:
            text = "failed without a reason of its own, in company of others"
            yield OutsideVerdict(origin=ORIGIN, name=name, verdict="UNKNOWN", text=text, gpu=result.gpu)
        else:
            text = f"{result.what}: {result.text}" if result.what and result.text else result.text or result.what
            yield OutsideVerdict(origin=ORIGIN, name=name, verdict=result.verdict, text=text, gpu=result.gpu)
    for verdict, alike in together.items():
        yield OutsideVerdict(origin=ORIGIN, name=name, verdict=verdict, text=_of_all(alike))


def _of_all(results: list[_Result]) -> str:
    gpus = [result.gpu for result in results if result.gpu is not None]
    texts = ([f"GPU {', '.join(gpus)}"] if gpus else []) + [result.what for result in results if result.what]
    said = next((result.text for result in results if result.text), "")
    return one_line("; ".join([*texts, *([said] if said else [])]))


def _result(entry: dict[str, Any]) -> _Result:
    verdict = verdict_of(str(entry.get("status", ""))) or "UNKNOWN"
    said = _texts([entry.get("warnings")])
    if verdict != "PASS":
        said += _texts([entry.get("info")])
    text = one_line("; ".join(said))
    if verdict == "UNKNOWN" and not text:
        text = one_line(f"status {entry.get('status')!r}", 80)
    group = entry.get("entity_group")
    number = entry.get("entity_id")
    if isinstance(group, str) and isinstance(number, int):
        if group == "GPU":
            return _Result(verdict, text, gpu=str(number))
        return _Result(verdict, text, what=one_line(f"{group} {number}", 80))
    ids = str(entry.get("gpu_id", entry.get("gpu_ids", ""))).strip()
    if ids.isascii() and ids.isdigit():
        return _Result(verdict, text, gpu=ids)
    return _Result(verdict, text, what=one_line(f"GPUs {ids}", 80) if ids else "")


def _texts(values: Iterable[Any]) -> list[str]:
    """The texts in warnings: a text, a list of them, or records with "warning" and "error_id"."""
    found: list[str] = []
    for value in values:
        if isinstance(value, str) and value.strip():
            found.append(value.strip())
        elif isinstance(value, list):
            found += _texts(value)
        elif isinstance(value, dict):
            number = value.get("error_id")
            found += [f"{text} (error {number})" if number else text for text in _texts([value.get("warning")])]
    return found
