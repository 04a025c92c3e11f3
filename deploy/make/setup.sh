#!/bin/sh
# Finds a Python that is new enough and lets it make the virtual environment. POSIX sh: nothing else may be there yet.
set -eu

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; }

if [ -n "${PYTHON:-}" ]; then
    candidates=$PYTHON
else
    candidates="python3 python3.13 python3.12 python3.11 python3.10"
fi
for candidate in $candidates; do
    if new_enough "$candidate"; then
        exec "$candidate" deploy/make/setup.py
    fi
done
echo "preflight needs Python 3.10 or newer; tried: $candidates" >&2
echo "  $(python3 --version 2>&1 || echo 'there is no python3'); name another one with: make PYTHON=/path/to/python3" >&2
exit 1
