"""The GPUs' product, where it stands in the text around a topology: in `nvidia-smi -L`, or in nvidia-smi's own table. People paste them together.

    GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-...)
    |   0  NVIDIA H100 80GB HBM3          On  | 00000000:19:00.0 Off |                    0 |

The table of older drivers cuts long names short ("NVIDIA A100-SXM..."): such a name tells nothing.
"""

import re

_MAX_LINE = 200  # longer ones are no output of nvidia-smi
_LISTED = re.compile(r"^[> ]*GPU (\d{1,3}): ([^ (][^(]{1,60}) \(UUID: ")
_IN_TABLE = re.compile(r"^[> ]*\| +(\d{1,3})  +((?:NVIDIA|Tesla|GeForce|Quadro) [^ |][^|]{0,60}?) +(?:On|Off|N/A) +\|")


def products_in(text: str) -> dict[int, str]:
    """GPU index -> product name as the driver writes it; without GPUs that are named twice and differently, as where several nodes are pasted."""
    found: dict[int, set[str]] = {}
    for line in text.splitlines():
        if len(line) > _MAX_LINE or not ("(UUID: " in line or "|" in line):
            continue
        match = _LISTED.match(line) or _IN_TABLE.match(line)
        if match and "..." not in match[2]:
            found.setdefault(int(match[1]), set()).add(" ".join(match[2].split()))
    return {index: next(iter(names)) for index, names in found.items() if len(names) == 1}
