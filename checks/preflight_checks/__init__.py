"""The built-in checks, in reading order."""

from preflight.model import Check

CHECKS: tuple[Check, ...] = ()
