"""Builds nvml_library.c, as the shared library that the binding looks for."""

import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
SONAME = "libnvidia-ml.so.1"


def build(folder: Path, *defines: str) -> Path:
    """The folder with the library in it, for LD_LIBRARY_PATH. `defines`: "HANG_INIT", "GPUS=2", ..."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["cc", "-shared", "-fPIC", "-O1", *(f"-D{define}" for define in defines), f"-Wl,-soname,{SONAME}"]
    subprocess.run([*command, "-o", str(folder / SONAME), str(SOURCE)], check=True, timeout=60)
    return folder
