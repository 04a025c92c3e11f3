"""The JSON that nccl-tests writes with -J FILE (versions 1 and 2 of its form) -> the run.

Form: NVIDIA/nccl-tests src/util.cu (2.17 to 2.19): `config.devices` has the first rank of each process, `results` a record per size with `out_of_place` and `in_place` (null: not run), in GB/s of
10^9 bytes and microseconds.
"""

import re
from collections.abc import Mapping
from typing import Any

from preflight.model.measurement import FailureKind
from preflight.probe.nccl_tests.lines import GIGA, MICRO
from preflight.probe.nccl_tests.run import COLLECTIVES, OTHERS, UNNAMED, Figures, Row, Run, Seat

MAX_ROWS, MAX_SEATS = 4096, 65536
_PROGRAM = re.compile(rf"(?<![A-Za-z])({'|'.join((*COLLECTIVES, *OTHERS))})_perf")


def is_document(document: object) -> bool:
    """True: nccl-tests wrote it."""
    return isinstance(document, dict) and "config" in document and ("nccl_version" in document or "results" in document)


def read_document(document: Mapping[str, Any], *, source: str, folder: str) -> Run:
    """The run. What is missing or of another type is left out. Never raises for content."""
    config = _mapping(document.get("config"))
    results = _list(document.get("results"))[:MAX_ROWS]
    rows = tuple(row for row in (_row(_mapping(result)) for result in results) if row)
    seats = _seats(config)
    ended = "average_bus_bandwidth" in document
    errors = [error for error in _list(document.get("errors")) if isinstance(error, str) and error]
    bounds = _mapping(document.get("out_of_bounds")).get("count")
    kind: FailureKind | None = None if ended else "crashed" if errors else "error"
    text = "" if ended else (errors[0][:200] if errors else "the document ends before the test does")
    return Run(
        source=source,
        folder=folder,
        program=_program(document),
        hosts=tuple(dict.fromkeys(seat.host for seat in seats)),
        seats=seats,
        rows=rows,
        settings=_settings(config, document),
        ended=ended,
        out_of_bounds=bounds if isinstance(bounds, int) and bounds >= 0 else None,
        failure=kind,
        failure_text=text,
    )


def _program(document: Mapping[str, Any]) -> str:
    arguments = [text for text in _list(document.get("args")) if isinstance(text, str)]
    found = next((match[1] for match in map(_PROGRAM.search, arguments[:1]) if match), None)
    return found or UNNAMED


def _settings(config: Mapping[str, Any], document: Mapping[str, Any]) -> tuple[str, ...]:
    """As text.py names them."""
    aggregated, graph = config.get("aggregated_iterations"), config.get("graph")
    variables = [text for text in _list(document.get("env")) if isinstance(text, str)]
    steering = re.compile(r"NCCL_(?:ALGO|PROTO|P2P_DISABLE|SHM_DISABLE|NVLS_ENABLE|IB_DISABLE)=\S{1,40}$")
    return (
        *((f"agg iters: {aggregated}",) if isinstance(aggregated, int) and aggregated > 1 else ()),
        *((f"graph: {graph}",) if isinstance(graph, int) and graph else ()),
        *sorted(text for text in variables if steering.match(text)),
    )


def _seats(config: Mapping[str, Any]) -> tuple[Seat, ...]:
    """Each device of the list stands for all of its process: nThreads x nGpus ranks and devices from it on, as far as the list doesn't name them itself."""
    each = _whole(config.get("nthreads")) * _whole(config.get("ngpus"))
    listed = [_mapping(device) for device in _list(config.get("devices"))]
    found: dict[tuple[int, int], Seat] = {}
    for extra in range(max(1, min(each, 64))):
        for device in listed:
            rank, group, number, host = (device.get(key) for key in ("rank", "group", "device", "hostname"))
            if not (isinstance(rank, int) and isinstance(number, int) and isinstance(host, str) and host):
                continue
            key = (group if isinstance(group, int) else 0, rank + extra)
            if key in found or len(found) >= MAX_SEATS or rank < 0 or number < 0:
                continue
            bus, gpu = device.get("device_hex"), device.get("device_info")
            found[key] = Seat(
                rank=rank + extra,
                group=key[0],
                host=host[:255],
                device=number + extra,
                bus=bus if isinstance(bus, str) and not extra else None,
                gpu=gpu[:80] if isinstance(gpu, str) else None,
            )
    return tuple(found[key] for key in sorted(found))


def _row(result: Mapping[str, Any]) -> Row | None:
    size, dtype, redop = result.get("size"), result.get("type"), result.get("redop")
    out, inside = _figures(result.get("out_of_place")), _figures(result.get("in_place"))
    if not isinstance(size, int) or size <= 0 or not (out or inside):
        return None
    return Row(
        size_bytes=size,
        dtype=dtype if isinstance(dtype, str) else "",
        redop=redop if isinstance(redop, str) and redop not in {"none", ""} else None,
        out=out,
        inside=inside,
    )


def _figures(half: object) -> Figures | None:
    values = _mapping(half)
    time_us = _number(values.get("time", values.get("cpu_time")))
    algbw, busbw = _number(values.get("alg_bw")), _number(values.get("bus_bw"))
    if not time_us or algbw is None or busbw is None:
        return None
    wrong = _number(values.get("nwrong"))
    return Figures(
        time_s=time_us * MICRO,
        algbw_bytes_per_s=algbw * GIGA,
        busbw_bytes_per_s=busbw * GIGA,
        num_wrong=wrong,
        checked=wrong is not None,
    )


def _number(value: object) -> float | None:
    """A number that can be one of these; None for null, "nan" and the rest."""
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18
    return float(value) if usable and isinstance(value, int | float) else None


def _whole(value: object) -> int:
    return value if isinstance(value, int) and 1 <= value <= 64 else 1


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
