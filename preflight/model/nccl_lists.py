"""How NCCL reads the values of its settings: numbers, and lists of interfaces and HCAs. Pure.

Sources: NCCL user guide, "Environment Variables", NCCL_SOCKET_IFNAME and NCCL_IB_HCA: a comma-separated list of prefixes; "^" in front excludes, "=" in front makes the names
exact, in this order; an HCA may carry ":port". Numbers are read with C's strtoll in base 0, so that a word counts as 0 (NCCL 2.30, ncclLoadParam).
"""

import re

from preflight.model.base import Record

_NUMBER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")


class NameList(Record, frozen=True):
    """A list as NCCL reads it: tokens of a name and a port (None: any), whether it excludes, and whether names are exact."""

    tokens: tuple[tuple[str, int | None], ...]
    excludes: bool = False
    exact: bool = False

    def takes(self, name: str, port: int | None = None) -> bool:
        """Whether this interface or HCA port is used under the list."""
        return self.names(name, port) is not self.excludes

    def names(self, name: str, port: int | None = None) -> bool:
        """Whether a token matches, whatever the list does with it."""
        return any(
            (name == token if self.exact else name.startswith(token)) and (its_port is None or port in {None, its_port})
            for token, its_port in self.tokens
        )


def read_list(text: str, *, ports: bool = False) -> NameList:
    """The list that a value stands for. `ports`: whether tokens may end in ":port". Empty tokens are left out, as NCCL does."""
    excludes = text.startswith("^")
    rest = text[1:] if excludes else text
    exact = rest.startswith("=")
    tokens = []
    for token in (rest[1:] if exact else rest).split(","):
        name, _, port = token.partition(":") if ports else (token, "", "")
        if name:
            tokens.append((name, int(port) if port.isascii() and port.isdigit() and len(port) < 6 else None))
    return NameList(tuple(tokens), excludes, exact)


def read_number(text: str) -> int | None:
    """The number that NCCL takes from a value. None: empty, so that the default holds. A word is 0.

    >>> read_number("1"), read_number("true"), read_number(""), read_number("0x10")
    (1, 0, None, 16)
    """
    if not text:
        return None
    match = _NUMBER.match(text)
    if match is None:
        return 0
    digits = match[2]
    base = 16 if digits[:2].lower() == "0x" else 8 if digits[0] == "0" else 10
    number = int(digits[:40], base)
    return -number if match[1] == "-" else number
