#!/bin/sh
# Installs preflight from this archive, without a network.
#   ./install.sh [--prefix DIR] [--python PYTHON]   into a virtual environment of its own (default /opt/preflight); DIR should be
#                                                   on the node's own disk: a shared file system that hangs would hang the check too
#   ./install.sh --into-current-environment         into the active container, conda or virtual environment, so that probes use its torch;
#                                                   nothing that is there is replaced
set -eu

here=$(cd "$(dirname "$0")" && pwd)
prefix=/opt/preflight
python=${PYTHON:-python3}
into_current=no

fail() { echo "install.sh: $1" >&2; exit 1; }

while [ $# -gt 0 ]; do
    case "$1" in
        --prefix) [ $# -ge 2 ] || fail "--prefix needs a folder"; prefix=$2; shift 2 ;;
        --python) [ $# -ge 2 ] || fail "--python needs a program"; python=$2; shift 2 ;;
        --into-current-environment) into_current=yes; shift ;;
        *) fail "unknown option $1 (known: --prefix DIR, --python PYTHON, --into-current-environment)" ;;
    esac
done

command -v "$python" >/dev/null 2>&1 || fail "there is no $python here; name one with --python"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "$("$python" --version 2>&1) is too old: preflight needs Python 3.10 or newer; name another one with --python"

pip_wheel=$(ls "$here"/wheels/pip-*.whl | tail -n 1)
constraints=$(mktemp)
trap 'rm -f "$constraints"' EXIT INT TERM

if [ "$into_current" = yes ]; then
    # whatever is installed stays at its version: an environment's numpy and torch belong together
    "$python" - >"$constraints" <<'PYTHON'
import re
from importlib.metadata import distributions

for name, version in sorted({(d.metadata["Name"], d.version) for d in distributions() if d.metadata["Name"]}):
    if name.lower() not in ("cluster-preflight", "pip") and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+!-]*", version or ""):
        print(f"{name}=={version}")
PYTHON
    target=$python
else
    "$python" -m venv --without-pip --clear "$prefix" || fail "no virtual environment could be made in $prefix"
    target=$prefix/bin/python
fi

"$target" "$pip_wheel/pip" install --quiet --disable-pip-version-check --no-index --find-links "$here/wheels" \
    --constraint "$constraints" cluster-preflight ||
    fail "nothing was installed: see pip's message above (this archive is for $(uname -m) and the Pythons named in its wheels; what is installed is never replaced)"

"$target" -m preflight --version
if [ "$into_current" = yes ]; then
    echo "installed into $("$target" -c 'import sys; print(sys.prefix)'); run it with: $python -m preflight"
else
    echo "installed; run $prefix/bin/preflight"
fi
"$target" -c 'import torch' 2>/dev/null ||
    echo "no torch in this environment: everything but probing works; to probe, install into the job's environment with --into-current-environment"
