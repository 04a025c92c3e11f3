"""What this machine can't test is left out, listed at the end with how to get it, and is an error under --no-omissions."""

import importlib.util
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import settings

HERE = Path(__file__).parent
PACKAGES = HERE / "debian-packages.txt"  # .ci/run installs these
NEEDS = ("fabric", "megatron", "cc", "root", "debian")
OMITTED = pytest.StashKey[dict[str, list[str]]]()


def missing(mark: pytest.Mark) -> str | None:  # noqa: PLR0911 - one for each kind of need
    """What a marked test needs and how to get it, None if it is there."""
    if mark.name == "fabric" and importlib.util.find_spec("torch") is None:
        return "torch: make setup TORCH_INDEX=URL, or make setup TORCH=cuda"
    if mark.name == "megatron" and importlib.util.find_spec("megatron") is None:
        return "megatron-core: .venv/bin/python -m pip install --no-deps megatron-core==0.16.1 (make setup does)"
    if mark.name == "cc" and shutil.which("cc") is None:
        return "a C compiler: apt-get install gcc libc6-dev"
    if mark.name == "root" and os.geteuid() != 0:
        return "root: run make test as root"
    if mark.name == "debian":
        package, *programs = mark.args
        if not all(shutil.which(program) for program in programs or [package]):
            return f"Debian package {package}: apt-get install {package}"
    if mark.name == "gpu" and not (Path("/proc/driver/nvidia").exists() or Path("/dev/nvidiactl").exists()):
        return "an NVIDIA GPU: run make test on a machine that has one"
    return None


def pytest_addoption(parser):
    parser.addoption("--no-omissions", action="store_true", help="A test that can't run here is an error (GPU aside).")


def pytest_configure(config):
    config.stash[OMITTED] = {}
    # no test's run is compared with another's, nor left in a history of this machine
    os.environ["PREFLIGHT_RUN_NO_HISTORY"] = "1"
    # the default suite takes minutes; `make soak` tries hypothesis' own number of examples
    settings.register_profile("default suite", max_examples=25)
    if "soak" not in config.option.markexpr:
        settings.load_profile("default suite")


def pytest_collection_modifyitems(config, items):
    """Soak and bench run only when asked for by name. A Debian package that no list names would never be installed."""
    known = PACKAGES.read_text().split()
    for mark in (mark for item in items for mark in item.iter_markers("debian")):
        if mark.args[0] not in known:
            raise pytest.UsageError(f"tests need the Debian package {mark.args[0]}, which {PACKAGES} does not list")
    asked = config.option.markexpr
    wanted, left = [], []
    for item in items:
        aside = any(item.get_closest_marker(m) and m not in asked for m in ("soak", "bench"))
        (left if aside else wanted).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = wanted
    if hasattr(config, "workerinput"):
        share_out(items)


def share_out(items):
    """The order in which several workers take whole files (--dist loadfile): those that start processes take minutes for few tests, so they come first.

    Left for the end, one worker would run the last of them while the others idle.
    """
    long = {item.path for item in items if any(item.get_closest_marker(need) for need in NEEDS)}
    items.sort(key=lambda item: item.path not in long)


def pytest_sessionfinish(session):
    """A worker of several hands over what it left out."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["omitted"] = session.config.stash[OMITTED]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    for how, tests in getattr(node, "workeroutput", {}).get("omitted", {}).items():
        node.config.stash[OMITTED].setdefault(how, []).extend(tests)


def pytest_runtest_setup(item):
    for mark in item.iter_markers():
        how = missing(mark)
        if how is None:
            continue
        if item.config.getoption("no_omissions") and mark.name != "gpu":
            pytest.fail(f"left out, which --no-omissions forbids; it needs {how}", pytrace=False)
        item.config.stash[OMITTED].setdefault(how, []).append(item.nodeid)
        pytest.skip(f"left out: it needs {how}")


def pytest_terminal_summary(terminalreporter, config):
    omitted = config.stash[OMITTED]
    if omitted:
        terminalreporter.section("left out on this machine")
        for how, tests in sorted(omitted.items()):
            count = "1 test needs" if len(tests) == 1 else f"{len(tests)} tests need"
            terminalreporter.write_line(f"{count} {how}")


def pytest_report_header():
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for name in (
        "torch",
        "megatron-core",
        "aiohttp",
        "msgspec",
        "click",
        "numpy",
        "psutil",
        "nvidia-ml-py",
        "prometheus-client",
    ):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} missing")
    return "with " + ", ".join(found)
