#!/bin/sh
# Finds a Python that is new enough and lets it make the virtual environment. POSIX sh: nothing else may be there yet.
set -eu

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; }

if [ -n "${PYTHON:-}" ]; then
    set -- "$PYTHON"
else
    # the one that .venv was made with stays; then python3, which is the one of an active conda or virtual environment
    chosen=$(sed -n 's/^python=//p' .venv/preflight-setup 2>/dev/null || true)
    set -- ${chosen:+"$chosen"} python3 python3.13 python3.12 python3.11 python3.10
fi
for candidate in "$@"; do
    if new_enough "$candidate"; then
        exec "$candidate" deploy/make/setup.py
    fi
done
echo "make setup: preflight needs Python 3.10 or newer; tried: $*" >&2
for candidate in "$@"; do
    echo "  $candidate: $("$candidate" --version 2>/dev/null || echo 'does not run')" >&2
done
echo "  name another one with: make setup PYTHON=/path/to/python3" >&2
exit 1
