#!/bin/sh
# Installs preflight from this archive, without a network.
#   ./install.sh [--prefix DIR] [--python PYTHON]   into a virtual environment of its own (default /opt/preflight); DIR should be
#                                                   on the node's own disk: a shared file system that hangs would hang the check too
#   ./install.sh --into-current-environment         into the active container, conda or virtual environment, so that probes use its torch;
#                                                   nothing that is there is replaced; --yes: also where none is active
set -eu

here=$(cd "$(dirname "$0")" && pwd)
prefix=/opt/preflight
python=${PYTHON:-python3}
into_current=no
sure=no

fail() { echo "install.sh: $1" >&2; exit 1; }

while [ $# -gt 0 ]; do
    case "$1" in
        --prefix) [ $# -ge 2 ] || fail "--prefix needs a folder"; prefix=$2; shift 2 ;;
        --python) [ $# -ge 2 ] || fail "--python needs a program"; python=$2; shift 2 ;;
        --into-current-environment) into_current=yes; shift ;;
        --yes) sure=yes; shift ;;
        -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) fail "unknown option $1 (known: --prefix DIR, --python PYTHON, --into-current-environment, --yes)" ;;
    esac
done

command -v "$python" >/dev/null 2>&1 || fail "there is no $python here; name one with --python"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "$("$python" --version 2>&1) is too old: preflight needs Python 3.10 or newer; name another one with --python"

# from here on in the archive's folder: a folder called preflight where the person stands would be imported
case "$python" in /*) ;; */*) python=$PWD/$python ;; esac
case "$prefix" in /*) ;; *) prefix=$PWD/$prefix ;; esac
cd "$here"

set -- "$here"/wheels/pip-*.whl
pip=$1/pip
set -- "$here"/wheels/cluster_preflight-*.whl
ours=$1
if [ ! -e "$ours" ] || [ ! -e "${pip%/pip}" ]; then
    fail "$here/wheels does not hold preflight and pip: unpack the whole archive and run install.sh from there"
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' INT TERM

in_environment() {
    [ -n "${CONDA_PREFIX:-}${APPTAINER_NAME:-}${SINGULARITY_NAME:-}${container:-}" ] || [ -e /.dockerenv ] || [ -e /run/.containerenv ] ||
        "$python" -c 'import sys; sys.exit(sys.prefix == sys.base_prefix)'
}

if [ "$into_current" = yes ]; then
    if [ "$sure" = no ] && ! in_environment; then
        fail "$python belongs to no container, conda or virtual environment: activate the job's, name its Python with --python, or add --yes to install into the system's"
    fi
    # whatever is installed stays at its version: an environment's numpy and torch belong together
    "$python" - >"$scratch/constraints" <<'PYTHON'
import re
from importlib.metadata import distributions

for name, version in sorted({(d.metadata["Name"], d.version) for d in distributions() if "Name" in d.metadata}):
    if re.sub("[-_.]+", "-", name).lower() not in ("cluster-preflight", "pip") and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+!-]*", version or ""):
        print(f"{name}=={version}")
PYTHON
    target=$python
else
    if [ -e "$prefix" ] && [ ! -e "$prefix/pyvenv.cfg" ] && [ -n "$(ls -A "$prefix")" ]; then
        fail "$prefix holds something that is no virtual environment, and would be overwritten; name an empty or new folder with --prefix"
    fi
    "$python" -m venv --without-pip --clear "$prefix" || fail "no virtual environment could be made in $prefix; name a folder with --prefix"
    target=$prefix/bin/python
fi

install() {
    touch "$scratch/constraints"
    "$target" "$pip" install --disable-pip-version-check --no-index --find-links wheels --constraint "$scratch/constraints" "$@" >"$scratch/log" 2>&1 || {
        cat "$scratch/log" >&2
        fail "nothing was installed: see pip's message above (this archive is for $(uname -m) and the Pythons named in its wheels; what is installed is never replaced)"
    }
}
has() { "$target" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)' "$1"; }

if has preflight; then # pip would keep another build of the same version
    install "$ours[import]"
    install --no-deps --force-reinstall "$ours"
else
    install "$ours[import]"
fi

"$target" -m preflight --version
if [ "$into_current" = yes ]; then
    echo "installed into $("$target" -c 'import sys; print(sys.prefix)'); run it with: $python -m preflight"
else
    echo "installed; run $prefix/bin/preflight"
fi
if ! has torch; then
    if [ "$into_current" = yes ]; then
        echo "no torch in this environment: everything but probing works"
    else
        echo "no torch in this environment: everything but probing works; to probe, install into the job's environment with --into-current-environment"
    fi
fi
