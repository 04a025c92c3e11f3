"""Addresses from rtnetlink: this machine's own, and answers that are cut off or make no sense."""

import socket
import struct

from hypothesis import given
from hypothesis import strategies as st

from preflight.discover.netlink import messages, parse_address, read_addresses


def message(family, index, *attributes):
    body = struct.pack("=BBBBI", family, 24, 0, 0, index)
    for kind, data in attributes:
        body += struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)
    return body


def test_the_loopback_interface_has_its_addresses():
    assert "127.0.0.1" in read_addresses()["lo"]


def test_the_local_end_counts_where_a_link_has_two():
    told = message(socket.AF_INET, 3, (1, bytes([10, 0, 0, 2])), (2, bytes([10, 0, 0, 1])), (3, b"tun0\0"))
    assert parse_address(told) == (3, "10.0.0.1")
    assert parse_address(message(socket.AF_INET6, 2, (1, bytes(15) + b"\1"))) == (2, "::1")


def test_an_address_of_another_family_or_length_is_none():
    assert parse_address(message(28, 1, (1, bytes(4)))) is None
    assert parse_address(message(socket.AF_INET, 1, (1, bytes(3)))) is None
    assert parse_address(message(socket.AF_INET, 1)) is None


@given(st.binary(max_size=200))
def test_random_bytes_are_read_to_their_end_without_an_exception(data):
    for _, content in messages(data):
        parse_address(content)
    parse_address(data)
