from pathlib import Path

import pytest

from preflight.plan.importers import import_files

FILES = Path(__file__).parent / "files"


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Imports files by their names in `files`, or from texts given as {name: text}."""

    def run(*names, **texts):
        paths = [FILES / name for name in names]
        for name, text in texts.items():
            path = tmp_path / name.replace("__", ".")
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
            paths.append(path)
        return import_files(paths)

    return run


@pytest.fixture
def values(read):
    """As `read`, and the values alone: {"parallel.tp": 8}."""

    def run(*names, **texts):
        document = read(*names, **texts).document
        return {f"{section}.{key}": value for section, keys in document.items() for key, value in keys.items()}

    return run
