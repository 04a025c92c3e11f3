"""The rates that an estimate calculates with: what one GPU computes, reads, and sends inside and outside its NVLink domain.

A rate that the plan file gives was measured or is known to the user, and is taken as it is. One that comes from a profile is a data sheet's, and is
lowered to what collectives get out of it.
"""

from collections.abc import Mapping
from typing import NamedTuple

from preflight.model import Hardware, Precision, Profile

# NCCL's own model of its links (topology code, topo.h): 20 of 25 GB/s per link of NVLink 3, 20.6 of 25 of NVLink 4, 40.1 of 50 of NVLink 5. Published
# all-reduce rates of eight GPUs are 96 to 99 % of links x that.
NVLINK_SHARE = 0.80
# NCCL's network constant: 12 GB/s of each 100 Gb/s; published point-to-point rates are 46 to 49 of 50 GB/s
NIC_SHARE = 0.96
# Large matrix products reach 86 % of A100's and 80 % of H100's peak in bf16 and 70 % in fp8 (see their profiles); these where a profile has no measured rate
MATMUL_SHARE = {"fp32": 0.80, "bf16": 0.80, "fp16": 0.80, "fp8": 0.70}
# Kernels that only read and write reach this share of the memory's rate: A100 copies at 1.61 of 2.04 TB/s, H100 at 2.90 of 3.35, H200 at 4.01 of 4.8 (Azure's
# published results of ND A100 v4, H100 v5, H200 v5). Not fitted to any run.
MEMORY_SHARE = 0.80


class Rates(NamedTuple):
    """Of one GPU; None: unknown. `peak_flops`: dense peak by precision, as on the data sheet. `matmul_flops`: what large matrix products reach.
    `nvlink_bytes_per_s`, `nic_bytes_per_s`: what a collective gets, one direction. `memory_bytes_per_s`: of the data sheet.
    """

    peak_flops: Mapping[str, float] = {}
    matmul_flops: Mapping[str, float] = {}
    nvlink_bytes_per_s: float | None = None
    nic_bytes_per_s: float | None = None
    memory_bytes_per_s: float | None = None

    def matmul(self, precision: Precision) -> float | None:
        """Floating-point operations per second of large matrix products; None: no peak known for that precision."""
        if precision in self.matmul_flops:
            return self.matmul_flops[precision]
        peak = self.peak_flops.get(precision)
        return None if peak is None else peak * MATMUL_SHARE[precision]


def rates_of(hardware: Hardware, profile: Profile | None) -> Rates:
    """The plan file's rates over the profile's. Worked example, H100 profile: NVLink 450 GB/s x 0.80 = 360 GB/s, network 50 x 0.96 = 48 GB/s."""
    nvlink, nic = hardware.nvlink_bytes_per_s, hardware.nic_bytes_per_s
    if profile is None:
        return Rates(nvlink_bytes_per_s=nvlink, nic_bytes_per_s=nic)
    sheet, network, memory = profile.nvlink_bytes_per_s, profile.nic_bytes_per_s, profile.memory_bytes_per_s
    return Rates(
        peak_flops={name: expected.value for name, expected in profile.peak_flops.items()},
        matmul_flops={name: expected.value for name, expected in profile.matmul_flops.items()},
        nvlink_bytes_per_s=nvlink or (None if sheet is None else sheet.value * NVLINK_SHARE),
        nic_bytes_per_s=nic or (None if network is None else network.value * NIC_SHARE),
        memory_bytes_per_s=None if memory is None else memory.value,
    )
