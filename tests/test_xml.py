"""XML of others: a document is read, and one that is made to fill the memory or to read files is refused."""

import builtins

import pytest

from preflight.errors import ConfigError
from preflight.formats import MAX_XML_BYTES, MAX_XML_DEPTH, parse_xml


def test_elements_and_attributes_are_read():
    root = parse_xml(b'<?xml version="1.0"?>\n<system version="1"><cpu numaid="0"/><cpu numaid="1"/></system>', "f.xml")
    assert (root.tag, [cpu.get("numaid") for cpu in root]) == ("system", ["0", "1"])


BOMB = b"""<?xml version="1.0"?>
<!DOCTYPE lolz [<!ENTITY lol "lol"><!ENTITY lol2 "&lol;&lol;&lol;&lol;&lol;&lol;&lol;&lol;&lol;&lol;">]>
<system>&lol2;</system>"""
EXTERNAL = b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><system>&x;</system>'


@pytest.mark.parametrize("text", [BOMB, EXTERNAL, b"<!DOCTYPE system><system/>"])
def test_document_types_and_entities_are_refused(text):
    with pytest.raises(ConfigError, match=r"f.xml: has a document type or entities, which are not read"):
        parse_xml(text, "f.xml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is not XML: no element found"),
        (b"<system><cpu></system>", "is not XML: mismatched tag: line 1"),
        (b"<system>&lol;</system>", "is not XML: undefined entity"),
        (b"<system>\xff</system>", "is not XML: not well-formed"),
        (b'<?xml version="1.0" encoding="nonsense"?><system/>', "unknown encoding: nonsense"),
        (b'<?xml version="1.0" encoding="utf-7"?><system/>', "is not XML that we take"),
        (b"<a>" * (MAX_XML_DEPTH + 1) + b"</a>" * (MAX_XML_DEPTH + 1), "is nested too deeply"),
        (b"<a>" * 100_000 + b"</a>" * 100_000, "is nested too deeply"),
        (b" " * (MAX_XML_BYTES + 1), "is larger than 1024 KiB"),
    ],
)
def test_what_is_no_document_that_we_take_is_one_message(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_xml(text, "f.xml")


def test_without_defusedxml_the_message_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **more):
        if name.startswith("defusedxml"):
            raise ImportError(name)
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"cluster-preflight\[import\]"):
        parse_xml(b"<system/>", "f.xml")
