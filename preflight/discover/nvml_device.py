"""Asking NVML one question at a time, with everything that can go wrong turned into None, and the reason kept with the fact it belongs to.

All nvml_* modules but nvml_reading.py and nvml_run.py run in the child, where every import delays the answer: plain dicts here become nouns in the parent.
"""

import ctypes
from collections.abc import Container
from types import ModuleType
from typing import Any

Facts = dict[str, Any]  # what will be a noun: its fields by name

# nvml.h, nvmlReturn_t
INVALID_ARGUMENT, NOT_SUPPORTED, FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED = 2, 3, 13, 15, 16
OTHER_STRUCT_VERSION, DEPRECATED = 25, 26
NOT_UNDERSTOOD = -1  # ours: the binding stumbled over what the library wrote

# Markers for "no value" that drivers put in the place of one. nvml.h: NVML_VALUE_NOT_AVAILABLE is -1; dcgm_structs.h: DCGM_INT32_BLANK 0x7ffffff0 and the
# few above it, DCGM_INT64_BLANK 0x7ffffffffffffff0 likewise (9223372036854775794 is its "not supported"; seen for a link counter of a B200).
BLANKS_32, BLANKS_64 = range(0x7FFFFFF0, 0x80000000), range(0x7FFFFFFFFFFFFFF0, 0x8000000000000000)
MINUS_ONE_32, MINUS_ONE_64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF

# this product, driver or binding doesn't have the feature: no fault
QUIET = (NOT_SUPPORTED, FUNCTION_NOT_FOUND, OTHER_STRUCT_VERSION, DEPRECATED)
# the GPU answers nothing more until it is reset: each further call may take seconds
GONE = (GPU_IS_LOST, RESET_REQUIRED)


class Device:
    """A handle, and what was refused so far. A handle of None asks about the system. `field` below is the name of a Gpu's field, `part` of a field of that
    field's noun.
    """

    def __init__(self, nvml: ModuleType, handle: Any) -> None:
        self.nvml = nvml
        self.handle = handle
        self.problems: list[Facts] = []
        self.gone = False
        self._without: dict[tuple[str, str | None], None] = {}

    def ask(
        self,
        function: str,
        *arguments: Any,
        field: str | None = None,
        part: str | None = None,
        quiet: Container[int] = QUIET,
    ) -> Any:
        """The answer, or None; a refusal other than the `quiet` codes becomes a problem of that field. None at once if the GPU is gone."""
        if self.gone:
            return None
        answer, code = self.try_ask(function, *arguments)
        if code:
            self.refused(function, code, field=field, part=part, quiet=quiet)
        return self._told(function, answer, field)

    def _told(self, function: str, answer: Any, field: str | None) -> Any:
        """The answer, or None where a driver's marker for "no value" stands in the place of one."""
        numbers = answer if isinstance(answer, (list, tuple)) else (answer,)
        if any(isinstance(number, int) and is_blank(number) for number in numbers):
            self.complain(function, "the driver gives a marker in the place of a value", field=field)
            return None
        return answer

    def ask_first(self, *functions: tuple[Any, ...], field: str, part: str | None = None) -> Any:
        """The answer of the first call that this driver and binding know: (function, argument, ...), newest first."""
        for function, *arguments in functions[:-1]:
            answer, code = (None, 0) if self.gone else self.try_ask(function, *arguments)
            if code not in (FUNCTION_NOT_FOUND, OTHER_STRUCT_VERSION, DEPRECATED):
                if code:
                    self.refused(function, code, field=field, part=part)
                return self._told(function, answer, field)
        function, *arguments = functions[-1]
        return self.ask(function, *arguments, field=field, part=part)

    def try_ask(self, function: str, *arguments: Any) -> tuple[Any, int]:
        """The answer and 0, or None and NVML's error code."""
        call = getattr(self.nvml, function, None)
        if call is None:
            return None, FUNCTION_NOT_FOUND
        try:
            answer = call(*arguments) if self.handle is None else call(self.handle, *arguments)
        except (self.nvml.NVMLError, self.nvml.NVMLLibraryMismatchError) as error:
            return None, describe(self.nvml, error)[0]
        except (TypeError, ctypes.ArgumentError):  # a binding in which that call took other arguments
            return None, FUNCTION_NOT_FOUND
        except UnicodeDecodeError as error:  # names with invalid bytes have been seen
            return error.object.decode("utf-8", errors="replace"), 0
        except (ValueError, LookupError, ArithmeticError, AttributeError, MemoryError):  # a count of billions, for one
            return None, NOT_UNDERSTOOD
        return answer, 0

    def ask_into(self, function: str, out: Any, *, field: str, part: str | None = None) -> bool:
        """Ask the library itself to fill `out`, and whether it did: where bindings differ in their structures or arguments."""
        code = 0 if self.gone else self.try_into(function, out)
        if code:
            self.refused(function, code, field=field, part=part)
        return code == 0 and not self.gone

    def try_into(self, function: str, out: Any) -> int:
        """Have the library fill `out`; NVML's code."""
        try:
            call = self.nvml._nvmlGetFunctionPointer(function)  # noqa: SLF001 - in every version of the binding; finds or raises
        except (AttributeError, self.nvml.NVMLError):
            return FUNCTION_NOT_FOUND
        return int(call(self.handle, out))

    def refused(
        self, source: str, code: int, *, field: str | None, part: str | None = None, quiet: Container[int] = QUIET
    ) -> None:
        """Keep a refusal: as a problem, or as "doesn't have it"."""
        if code in quiet:
            self.lacks(field, part)
            return
        self.gone = code in GONE
        self.complain(source, describe_code(self.nvml, code), field=None if self.gone else field)

    def lacks(self, field: str | None, part: str | None = None) -> None:
        """The product or driver doesn't have that fact, or that part of it."""
        if field is not None:
            self._without[field, part] = None

    def complain(self, source: str, text: str, *, field: str | None) -> None:
        """A problem, kept once."""
        problem = {"source": source, "text": text, "field": field}
        if problem not in self.problems:
            self.problems.append(problem)

    def unsupported(self, facts: Facts) -> list[str]:
        """The fields that are unknown because product or driver doesn't have them, and for no other reason; and the parts that it doesn't have."""
        failed = {problem["field"] for problem in self.problems}
        names: dict[str, None] = {}
        for field, part in self._without:
            fact = facts.get(field)
            if fact is None and field not in failed:
                names[field] = None
            if part is not None and (fact is None or fact.get(part) is None):
                names[part] = None
        return list(names)


def is_blank(number: int) -> bool:
    """Whether a number is one of the markers for "no value", of 32 or 64 bits, which no true value reaches."""
    return number in BLANKS_32 or number in BLANKS_64 or number in (MINUS_ONE_32, MINUS_ONE_64)


def describe(nvml: ModuleType, error: Exception) -> tuple[int, str]:
    """Code and text of what the binding raised. Its mismatch error carries no code and means a missing function."""
    code = int(getattr(error, "value", FUNCTION_NOT_FOUND))
    return code, describe_code(nvml, code)


def describe_code(nvml: ModuleType, code: int) -> str:
    """The library's own words for a code, or the binding's where there is no library to ask: "GPU is lost (NVML 15)"."""
    if code == NOT_UNDERSTOOD:
        return "the answer can't be understood"
    try:
        text = nvml.nvmlErrorString(code)
    except (nvml.NVMLError, UnicodeDecodeError):
        text = str(nvml.NVMLError(code))
    return f"{text_or_none(text) or 'unknown error'} (NVML {code})"


def text_or_none(value: Any) -> str | None:
    """A string of the binding, which very old ones give as bytes. What means "unknown" becomes None."""
    if value is None:
        return None
    text = value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)
    text = text.strip("\0 \t\r\n")
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return None if text.upper() in ("", "N/A", "[N/A]", "UNKNOWN ERROR") else text


def bus_id_in(structure: Any) -> str | None:
    """The text of the PCI id in a structure of the binding; None if there is none."""
    try:
        return None if structure is None else text_or_none(structure.busId)
    except UnicodeDecodeError:
        return None


def spelled_bus_id(text: str | None) -> str | None:
    """A PCI id as sysfs spells it: "00000000:1A:00.0" -> "0000:1a:00.0". None if it is no id, or one that is not shown.

    As pci.pci_bus_id does, without the modules which that needs.
    """
    if text is None or is_hidden(text):
        return None
    domain, _, rest = text.partition(":")
    bus, _, rest = rest.partition(":")
    device, _, function = rest.partition(".")
    try:
        return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{int(function, 16):x}"
    except ValueError:
        return None


def is_hidden(bus_id: str) -> bool:
    """Whether it is the id of a device that this system may not see: GB200's switches, or those kept from a virtual machine."""
    return bus_id.upper().startswith("FFFFFFFF")


def known(**facts: Any) -> Facts | None:
    """A part of a GPU, without what is unknown. None if nothing of it is known."""
    told = {name: value for name, value in facts.items() if value is not None and value != {}}
    return told or None
