"""Logs as nccl-tests writes them, with figures of our own: of several versions, and of runs that went wrong.

Shapes: NVIDIA/nccl-tests src/util.cu and src/common.cu, and outputs in its issues (82: 2.0; 252: 2.13; 139: a row that NCCL's lines cut in two; 306: a split run).
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

GIB = 2**30
H100 = "NVIDIA H100 80GB HBM3"
BUSES = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
REDUCES = {"all_reduce", "reduce_scatter", "reduce"}


def factor(program: str, ranks: int) -> float:
    if program == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return 1.0 if program in {"sendrecv", "broadcast", "reduce"} else (ranks - 1) / ranks


def preface(
    program: str, *, version: str = "2.17.6", per_process: int = 1, least: int = GIB, most: int = GIB
) -> list[str]:
    config = (
        f"# nThread 1 nGpus {per_process} minBytes {least} maxBytes {most} step: 2(factor) warmup iters: 5 iters: 20"
    )
    if version == "2.0":
        return [f"{config} validation: 1 ", "#", "# Using devices"]
    if version == "2.13":
        return [f"{config} agg iters: 1 validation: 1 graph: 0", "#", "# Using devices"]
    named = [
        f"# nccl-tests version {version} nccl-headers=22807 nccl-library=22807",
        f"# Collective test starting: {program}_perf",
    ]
    return [*named, f"{config} agg iters: 1 validation: 1 graph: 0", "#", "# Using devices"]


def seats(
    hosts: Sequence[str], gpus: int, *, version: str = "2.17.6", per_process: int = 1, groups: int = 1
) -> list[str]:
    lines = []
    for place, host in enumerate(hosts):
        for device in range(gpus):
            rank = place * gpus + device
            pid = 1000 + zlib.crc32(host.encode()) % 300000 + device // per_process
            if version == "2.0":
                lines.append(
                    f"#   Rank {rank:2d} Pid {pid:6d} on {host:>10} device {device:2d} [0x{BUSES[device % 8]}] {H100}"
                )
            else:
                bus = f"0x{BUSES[device % 8]}" if version == "2.13" else f"0000:{BUSES[device % 8]}:00"
                lines.append(
                    f"#  Rank {rank:2d} Group {rank % groups:2d} Pid {pid:6d} on {host:>10} device {device:2d} [{bus}] {H100}"
                )
    return lines


def table_head(*, version: str = "2.17.6", per_iteration: bool = False) -> list[str]:
    if version == "2.0":
        return [
            "#",
            "#                                                     out-of-place                       in-place          ",
            "#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error",
            "#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       ",
        ]
    more = " i_min i_max i_p99 i_cv%" if per_iteration else ""
    return [
        "#",
        "#                                                              out-of-place                       in-place          ",
        f"#       size         count      type   redop    root     time   algbw   busbw  #wrong{more}     time   algbw   busbw  #wrong{more}",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         ",
    ]


def row(
    program: str,
    size: int,
    busbw: float,
    ranks: int,
    *,
    version: str = "2.17.6",
    wrong: int = 0,
    per_iteration: bool = False,
) -> str:
    """A row; `busbw` in GB/s."""
    halves = []
    for number in range(2):
        value = busbw * (1 - 0.001 * number)
        algbw = value / factor(program, ranks)
        time_us = size / (algbw * 1e9) * 1e6
        time = f"{time_us:.2f}" if time_us < 1e4 else f"{time_us:.1f}" if time_us < 1e5 else f"{time_us:.0f}"
        bad = "N/A" if number and program in {"alltoall", "sendrecv"} else f"{wrong}" if version != "2.0" else "1e-06"
        more = (
            f"  {time_us * 0.98:7.1f}  {time_us * 1.05:7.1f}  {time_us * 1.04:7.1f}     1.20" if per_iteration else ""
        )
        halves.append(f"  {time:>7}  {algbw:6.2f}  {value:6.2f}  {bad:>6}{more}")
    op = "sum" if program in REDUCES else "none"
    if version == "2.0":
        return f"{size:12d}  {size // 4:12d}   float  {op if op == 'sum' else '':>6} {''.join(halves)}"
    return f"{size:12d}  {size // 4:12d}     float  {op:>6}      -1{''.join(halves)}"


def summary(program: str, average: float, *, version: str = "2.17.6", wrong: int = 0) -> list[str]:
    end = [] if version in {"2.0", "2.13"} else ["#", f"# Collective test concluded: {program}_perf", ""]
    return [
        f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}",
        f"# Avg bus bandwidth    : {average:g} ",
        *end,
    ]


def log(
    hosts: Sequence[str],
    rates: Mapping[int, float],
    *,
    program: str = "alltoall",
    gpus: int = 8,
    version: str = "2.17.6",
    average: float | None = None,
    per_process: int = 1,
    groups: int = 1,
    wrong: int = 0,
    per_iteration: bool = False,
) -> str:
    """A whole log. `rates`: size in bytes -> bus bandwidth in GB/s."""
    ranks = len(hosts) * gpus // groups
    lines = [
        *preface(program, version=version, per_process=per_process, least=min(rates), most=max(rates)),
        *seats(hosts, gpus, version=version, per_process=per_process, groups=groups),
        *table_head(version=version, per_iteration=per_iteration),
        *(
            row(program, size, rate, ranks, version=version, wrong=wrong, per_iteration=per_iteration)
            for size, rate in rates.items()
        ),
        *summary(
            program, sum(rates.values()) / len(rates) if average is None else average, version=version, wrong=wrong
        ),
    ]
    return "\n".join(lines) + "\n"


def died(
    hosts: Sequence[str], *, program: str = "alltoall", gpus: int = 8, listed: bool = True, text: str | None = None
) -> str:
    """The log of a run that died before its first row. `listed`: it had listed its devices."""
    told = [*preface(program), *seats(hosts, gpus)] if listed else []
    error = f"{hosts[0]}: Test NCCL failure common.cu:1279 'remote process exited or there was a network error / '"
    more = f" .. {hosts[0]} pid 4711: Test failure common.cu:1100"
    return "\n".join([*told, text or f"{error}\n{more}"]) + "\n"


def document(
    hosts: Sequence[str], rates: Mapping[int, float], *, program: str = "alltoall", gpus: int = 8, per_process: int = 1
) -> str:
    """What -J writes."""
    ranks = len(hosts) * gpus
    devices = [
        {
            "rank": place * gpus + device,
            "group": 0,
            "pid": 100 + device,
            "hostname": host,
            "device": device,
            "device_hex": f"0000:{BUSES[device]}:00",
            "device_info": H100,
        }
        for place, host in enumerate(hosts)
        for device in range(0, gpus, per_process)
    ]
    results = []
    for size, rate in rates.items():
        algbw = rate / factor(program, ranks)
        half = {"time": size / algbw / 1e3, "alg_bw": algbw, "bus_bw": rate, "nwrong": 0.0}
        entry: dict[str, Any] = {"size": size, "count": size // 4, "type": "float", "redop": "none", "root": "    -1"}
        results.append({**entry, "out_of_place": half, "in_place": {**half, "nwrong": None}})
    whole = {
        "version": 2,
        "start_time": "2026-05-04 10:00:00",
        "args": [f"./build/{program}_perf", "-J", "out.json"],
        "env": ["PATH=/usr/bin"],
        "nccl_version": 22807,
        "config": {
            "nthreads": 1,
            "ngpus": per_process,
            "iterations": 20,
            "aggregated_iterations": 1,
            "graph": 0,
            "devices": devices,
        },
        "results": results,
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 1.0, "okay": "unchecked"},
        "errors": [],
        "end_time": "2026-05-04 10:01:00",
    }
    return json.dumps(whole)


def write_pairs(folder: Path, rates: Mapping[tuple[str, str], Mapping[int, float] | None], **options: Any) -> Path:
    """One log for each pair: `rates` by size in GB/s; None: the run died."""
    folder.mkdir(parents=True, exist_ok=True)
    for (a, b), by_size in rates.items():
        text = died((a, b)) if by_size is None else log((a, b), by_size, **options)
        (folder / f"{a}_{b}.log").write_text(text)
    return folder
