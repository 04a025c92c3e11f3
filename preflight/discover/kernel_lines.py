"""What single lines of the kernel log say of GPUs, NVSwitches and PCI links. Pure text work: any text is taken, none raises.

The forms, with where they are documented or were reported:
- "NVRM: Xid (PCI:0000:41:00): 79, pid=123, name=python3, GPU has fallen off the bus." and the older "NVRM: Xid (0000:03:00): 14, Channel 00000001": NVIDIA, "Xid
  Errors", 2.1 and "Analyzing Xid Errors with the Xid Catalog"; a MIG device adds "GPU-I:05" to the address.
- Xids 144 to 150: "<number>, <sub component> <Fatal or Nonfatal> <cross contain> <injected> Link <n> (<registers>)": the same catalogue, WORKFLOW_NVLINK5_ERR.
- "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ interrupt", then lines of the same number that begin with "Severity" or
  "Data": NVIDIA/nvtrust issue 124. The words Fatal and Non-fatal: Fabric Manager User Guide, "NVSwitch SXid errors".
- A GPU that fell off the bus without an Xid, told over several lines, and "probe routine failed": NVIDIA/NVSentinel issues 155 and 195, leptonai/gpud 1209.
- "PCIe Bus Error: severity=...": Linux, Documentation/PCI/pcieaer-howto.
"""

import re
from collections.abc import Iterable

from preflight.discover.pci import pci_bus_id
from preflight.model import KernelEvent
from preflight.model.base import Record

FOLD_S = 300.0  # equal lines that follow each other this closely are one event with a count
MAX_EVENTS = 2000  # a GPU that repeats itself for weeks must not fill the report
MAX_TEXT = 300
TOLD_TOGETHER_S = 5.0  # "The NVIDIA GPU ... / ... / fallen off the bus" runs over three lines; others may come between

# a line with none of these is no event: most need no closer look
LOADED = "NVRM: loading NVIDIA UNIX"  # both kinds of the driver begin so when they are loaded
HINTS = (LOADED, "Xid", "fallen off the bus", "NVRM: The NVIDIA ", "RmInitAdapter failed", "PCIe Bus Error")
# patterns are texts: the log of a healthy machine needs none of them, and compiling all takes milliseconds
# a user chooses names of processes, and parts of other lines of the kernel's: nothing counts behind a quote, or where a line doesn't begin so
_XID = r"^NVRM: [^'\"]{0,80}?\bXid(?: error)? ?\((?:PCI:)?([0-9a-fA-F:.]+)[^)]{0,40}\): *(\d{1,6})\b[,:]? *(.*)"
_PROCESS = r"^pid='?(\d{1,10}|<[^>,]*>)'?(?:, *name='?([^,']{0,64})'?)?,? *"
_NVLINK5 = r"(?i:^(\w+) +(Fatal|Non-?fatal)\b)"
_SXID = r"^nvidia-nvswitch\d+: SXid \(PCI:([0-9a-fA-F:.]+)\): *(\d{1,6}), *(.*)"
_SXID_MAIN = r"(?i:^((?:Always )?Fatal|Non-?fatal), *(?:Link (\d{1,4})\b)?)"
_DEVICE = r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{1,2}:[0-9a-fA-F]{1,2}(?:\.[0-7])?)"
_FELL_OFF = rf"^NVRM: GPU (?:at )?(?:PCI:)?{_DEVICE}:? .{{0,20}}fallen off the bus"
_FELL_BEGINS = rf"^NVRM: The NVIDIA GPU {_DEVICE}"
_FELL_ENDS = r"^NVRM: [^'\"]{0,80}fallen off the bus"
_INIT = rf"^NVRM: (?:GPU {_DEVICE}: )?.{{0,20}}RmInitAdapter failed"
_PROBE = r"^NVRM: The NVIDIA probe routine failed for (\d+) device"
_AER = rf"^[A-Za-z0-9_.-]{{1,40}} {_DEVICE}: (?:AER: )?PCIe Bus Error: severity=([A-Za-z]+(?: \([A-Za-z-]+\))?)"
_NVLINK5_XIDS = range(144, 151)
_TEXT_COUNTS = {74, 149, 154}  # whose words or registers differ in meaning: not folded over different texts


class LogLine(Record, frozen=True):
    """One line without its prefix. `at_s`: seconds since boot, None if the log doesn't tell. `times`: how often it came (syslog folds lines)."""

    at_s: float | None
    text: str
    times: int = 1


class Parsed(Record, frozen=True):
    """The events in the order of the log, how many found no room, and when the driver was loaded last."""

    events: tuple[KernelEvent, ...]
    dropped: int = 0
    loaded_at_s: float | None = None


def parse_events(lines: Iterable[LogLine]) -> Parsed:
    """What these lines say. Equal ones that follow each other within FOLD_S seconds become one event with a count."""
    folded = _Folded()
    details: dict[tuple[str | None, int | None], KernelEvent] = {}
    begun: tuple[str | None, float | None] | None = None
    loaded_at_s: float | None = None
    for line in lines:
        if not any(hint in line.text for hint in HINTS):
            continue
        if line.text.startswith(LOADED):
            loaded_at_s = line.at_s
            continue
        text = _clean(line.text)
        if match := re.match(_FELL_BEGINS, text):
            begun = (_device(match[1]), line.at_s)
        event = _event(line.at_s, text)
        if event is None and begun and re.match(_FELL_ENDS, text) and _together(begun[1], line.at_s):
            event, begun = KernelEvent(kind="fell off", at_s=line.at_s, pci_bus_id=begun[0], text=text), None
        if event is None:
            continue
        if event.kind == "sxid" and event.severity is None:
            details.setdefault((event.pci_bus_id, event.code), event)
        else:
            folded.add(event, line.times)
    told = {(event.pci_bus_id, event.code) for event in folded.events if event.kind == "sxid"}
    for key, event in details.items():
        if key not in told:
            folded.add(event, 1)
    return Parsed(tuple(folded.events), folded.dropped, loaded_at_s)


def _together(begun_s: float | None, at_s: float | None) -> bool:
    return begun_s is None or at_s is None or at_s - begun_s <= TOLD_TOGETHER_S


def _event(at_s: float | None, text: str) -> KernelEvent | None:
    if match := re.match(_XID, text):
        return _xid(at_s, text, _device(match[1]), int(match[2]), match[3])
    if match := re.match(_SXID, text):
        main = re.match(_SXID_MAIN, match[3])
        return KernelEvent(
            kind="sxid",
            at_s=at_s,
            code=int(match[2]),
            severity=main[1] if main else None,
            pci_bus_id=_device(match[1]),
            port=int(main[2]) if main and main[2] else None,
            text=text,
        )
    return _without_code(at_s, text)


def _without_code(at_s: float | None, text: str) -> KernelEvent | None:
    if match := re.match(_FELL_OFF, text):
        return KernelEvent(kind="fell off", at_s=at_s, pci_bus_id=_device(match[1]), text=text)
    if match := re.match(_INIT, text):
        return KernelEvent(kind="driver", at_s=at_s, pci_bus_id=_device(match[1]) if match[1] else None, text=text)
    if re.match(_PROBE, text):
        return KernelEvent(kind="driver", at_s=at_s, text=text)
    if match := re.match(_AER, text):
        return KernelEvent(kind="aer", at_s=at_s, severity=match[2], pci_bus_id=_device(match[1]), text=text)
    return None


def _xid(at_s: float | None, text: str, device: str | None, code: int, rest: str) -> KernelEvent:
    pid, process = None, None
    if match := re.match(_PROCESS, rest):
        pid = int(match[1]) if match[1].isascii() and match[1].isdigit() else None
        process = match[2].strip() if match[2] and not match[2].startswith("<") else None
        rest = rest[match.end() :]
    words = re.match(_NVLINK5, rest) if code in _NVLINK5_XIDS else None
    return KernelEvent(
        kind="xid",
        at_s=at_s,
        code=code,
        subcode=words[1] if words else None,
        severity=words[2] if words else None,
        pci_bus_id=device,
        pid=pid,
        process=process or None,
        text=text,
    )


class _Folded:
    """Events, with equal ones counted."""

    def __init__(self) -> None:
        self.events: list[KernelEvent] = []
        self.dropped = 0
        self._places: dict[tuple[object, ...], int] = {}

    def add(self, event: KernelEvent, count: int) -> None:
        key = (
            *(event.kind, event.code, event.subcode, event.severity, event.pci_bus_id, event.port, event.pid),
            event.text if event.code in _TEXT_COUNTS else None,
        )
        place = self._places.get(key)
        full = len(self.events) >= MAX_EVENTS
        if place is not None and (full or _close(self.events[place], event)):
            self.events[place] = _counted(self.events[place], count, event.at_s)
        elif full:
            self.dropped += count
        else:
            self._places[key] = len(self.events)
            self.events.append(_counted(event, count - 1, None))


def _close(earlier: KernelEvent, later: KernelEvent) -> bool:
    last_s = earlier.at_s if earlier.last_at_s is None else earlier.last_at_s
    return last_s is None or later.at_s is None or later.at_s - last_s <= FOLD_S


def _counted(event: KernelEvent, more: int, last_at_s: float | None) -> KernelEvent:
    if more <= 0:
        return event
    fields = {name: getattr(event, name) for name in KernelEvent.__struct_fields__}
    return KernelEvent(**{**fields, "count": event.count + more, "last_at_s": last_at_s or event.last_at_s})


def _device(text: str) -> str | None:
    """A PCI id as sysfs spells it; Xid lines leave the function out."""
    return pci_bus_id(text if "." in text else f"{text}.0")


def _clean(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text[:MAX_TEXT]).strip()
