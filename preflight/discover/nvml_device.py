"""Asking NVML one question at a time, with everything that can go wrong turned into None and a problem."""

from collections.abc import Container
from types import ModuleType
from typing import Any

from preflight.model import Problem

# nvml.h, nvmlReturn_t
INVALID_ARGUMENT, NOT_SUPPORTED, FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED = 2, 3, 13, 15, 16
_OTHER_STRUCT_VERSION, _DEPRECATED = 25, 26

# this product, driver or binding doesn't have the feature: no fault
QUIET = (NOT_SUPPORTED, FUNCTION_NOT_FOUND, _OTHER_STRUCT_VERSION, _DEPRECATED)
# the GPU answers nothing more until it is reset: each further call may take seconds
GONE = (GPU_IS_LOST, RESET_REQUIRED)


class Device:
    """A handle, and the problems met so far. A handle of None asks about the system."""

    def __init__(self, nvml: ModuleType, handle: Any) -> None:
        self.nvml = nvml
        self.handle = handle
        self.problems: list[Problem] = []
        self.gone = False

    def ask(self, function: str, *arguments: Any, quiet: Container[int] = QUIET) -> Any:
        """The answer, or None; a refusal other than the `quiet` codes becomes a problem. None at once if the GPU is gone."""
        if self.gone:
            return None
        answer, code = self.try_ask(function, *arguments)
        if code and code not in quiet:
            self.problems.append(Problem(source=function, text=describe_code(self.nvml, code)))
            self.gone = code in GONE
        return answer

    def try_ask(self, function: str, *arguments: Any) -> tuple[Any, int]:
        """The answer and 0, or None and NVML's error code."""
        call = getattr(self.nvml, function, None)
        if call is None:
            return None, FUNCTION_NOT_FOUND
        try:
            answer = call(*arguments) if self.handle is None else call(self.handle, *arguments)
        except (self.nvml.NVMLError, self.nvml.NVMLLibraryMismatchError) as error:
            return None, describe(self.nvml, error)[0]
        except UnicodeDecodeError:
            return None, self.nvml.NVML_ERROR_UNKNOWN
        return answer, 0


def describe(nvml: ModuleType, error: Exception) -> tuple[int, str]:
    """Code and text of what the binding raised. Its mismatch error carries no code and means a missing function."""
    code = int(getattr(error, "value", FUNCTION_NOT_FOUND))
    return code, describe_code(nvml, code)


def describe_code(nvml: ModuleType, code: int) -> str:
    """The library's own words for a code, or the binding's where there is no library to ask: "GPU is lost (NVML 15)"."""
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
    return None if text.upper() in ("", "N/A", "[N/A]", "UNKNOWN ERROR") else text
