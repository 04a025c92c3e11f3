"""Variables of a shell script filled in, as far as the file itself says what they are.

What the file doesn't say (a command's output, a variable of the environment) stays as a mark, so that whoever reads a value sees that it
is unknown and why. A mark is its source text between two NUL characters, which no script can contain; characters that mean something to a
shell are moved out of its way there, so that a text with marks can be split into words again.
"""

import re

from preflight.errors import ConfigError
from preflight.plan.importers.arithmetic import UnknownNumberError, evaluate
from preflight.plan.importers.shell_lex import Word, closing

MAX_TEXT = 8 * 2**20  # characters that all expansions together may give: A=$A$A doubles at each line
MAX_DEPTH = 12  # of ${A:-${B:-...}}

Value = str | list[str]

_NAME = re.compile(r"[A-Za-z_]\w*")
_BRACED = re.compile(r"(#?)([A-Za-z_]\w*|[0-9@*#?$!]+)(?:\[([^\]]*)\])?(.*)", re.DOTALL)
_EXPR = re.compile(r"\$\(\s*expr\s+([^`;|]*)\)")
_PATTERN = set("*?[$`\\")


_AWAY = {
    ord(char): 0xE000 + ord(char) for char in "$`(){}[]<>'\"\\;&|#!*?=~ \t\r\n-"
}  # to the private use area of Unicode
_BACK = {moved: char for char, moved in _AWAY.items()}


def mark(source: str) -> str:
    """The mark of something unknown."""
    return "\0" + source.replace("\0", "")[:60].translate(_AWAY) + "\0"


def marks(text: str) -> list[str]:
    """The sources of what is unknown in a text."""
    return [" ".join(source.translate(_BACK).split()) for source in text.split("\0")[1::2]]


def shown(text: str) -> str:
    """A text for a message: what is unknown as it stands in the script."""
    return re.sub(r"\0([^\0]*)\0", lambda match: match[1].translate(_BACK), text)


class Variables:
    """Variables by name, and what of the environment is taken as not set."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.values: dict[str, Value] = {}
        self.unset: set[str] = set()  # variables for which a default was taken because the file does not set them
        self.skipped: set[str] = (
            set()
        )  # variables that only a branch sets which is not taken: empty, if nothing else sets them
        self.used = 0

    def get(self, name: str) -> str | None:
        """The text of a variable, None if the file doesn't set it."""
        value = self.values.get(name)
        if isinstance(value, list):
            return value[0] if value else ""
        return value

    def text(self, word: Word) -> str:
        """A word as one text, as in an assignment or inside quotes."""
        return "".join(part.text if part.quote == "'" else self.fill(part.text) for part in word)

    def words(self, word: Word) -> list[str]:
        """The words that one word becomes: unquoted variables are split at blanks, "${ARRAY[@]}" gives one word for each element."""
        array = self._whole_array(word)
        if array is not None:
            return array
        found: list[str] = []
        open_word: str | None = None
        for part in word:
            if part.quote:
                open_word = (open_word or "") + (part.text if part.quote == "'" else self.fill(part.text))
                continue
            text = self.fill(part.text)
            pieces = text.split()
            if text[:1].isspace() and open_word is not None:
                found.append(open_word)
                open_word = None
            for index, piece in enumerate(pieces):
                if index or open_word is None:
                    if open_word is not None:
                        found.append(open_word)
                    open_word = piece
                else:
                    open_word += piece
            if text[-1:].isspace() and pieces and open_word is not None:
                found.append(open_word)
                open_word = None
        return found if open_word is None else [*found, open_word]

    def fill(self, text: str, depth: int = 0) -> str:
        """Text with its variables, arithmetic and command outputs in place. Raises ConfigError if it grows without bound."""
        if "$" not in text and "`" not in text:
            return self.count(text)
        filled, at = [], 0
        while at < len(text):
            end = min((i for i in (text.find("$", at), text.find("`", at)) if i >= 0), default=len(text))
            filled.append(text[at:end])
            if end >= len(text):
                break
            value, at = self._one(text, end, depth)
            filled.append(self.count(value))
        return "".join(filled)

    def count(self, text: str) -> str:
        """The text, counted towards MAX_TEXT. Raises ConfigError above it."""
        self.used += len(text) + 1
        if self.used > MAX_TEXT:
            raise ConfigError(
                self.source,
                f"its variables expand to more than {MAX_TEXT // 2**20} MiB",
                remedy="import the argument block of the job's log in its place",
            )
        return text

    def _one(self, text: str, at: int, depth: int) -> tuple[str, int]:
        """What stands at the $ or ` at `at`, and where it ends."""
        following = text[at + 1 : at + 2]
        if text[at] == "`":
            end = text.find("`", at + 1)
            end = len(text) if end < 0 else end + 1
            return self._command(f"$({text[at + 1 : end - 1]})"), end
        if following in {"(", "{"}:
            end = closing(text, at + 1)
            inner = text[at:end]
            if following == "{":
                value = self._braced(inner[2:-1], depth)
            elif inner.startswith("$((") and inner.endswith("))"):
                value = self.arithmetic(inner[3:-2])
            else:
                value = self._command(inner)
            return value, end
        name = _NAME.match(text, at + 1)
        if name:
            return self._variable(name[0]), name.end()
        if not following or following not in "0123456789@*#?$!-":
            return "$", at + 1
        return self._argument(following), at + 2

    def _argument(self, name: str) -> str:
        """$1, $@, $# and the like; a script that is only read has no arguments."""
        arguments = self.values.get("@")
        if name in {"@", "*"} and isinstance(arguments, list):
            return " ".join(arguments)
        if name == "#":
            return self.get("#") or "0"
        return self.get(name) or mark(f"${name}")

    def _variable(self, name: str) -> str:
        value = self.get(name)
        if value is None:
            return "" if name in self.skipped else mark(f"${name}")
        return value

    def _command(self, source: str) -> str:
        """The output of a command: unknown, except that of expr."""
        match = _EXPR.fullmatch(source)
        return self.arithmetic(match[1].replace("\\", "")) if match else mark(source)

    def arithmetic(self, expression: str) -> str:
        """The value of an expression as text, or a mark."""
        try:
            return str(evaluate(self.fill(expression) if "$" in expression else expression, self.get))
        except UnknownNumberError:
            return mark(f"$(({expression}))")

    def _braced(self, inner: str, depth: int) -> str:
        match = _BRACED.fullmatch(inner)
        if match is None or depth > MAX_DEPTH:
            return mark("${" + inner + "}")
        length, name, index, change = match.groups()
        value = self.values.get(name)
        if index is not None:
            value = self._element(value, index)
        text = value[0] if isinstance(value, list) and value else "" if isinstance(value, list) else value
        if length:
            if not change and index in {"@", "*"} and isinstance(self.values.get(name), list):
                return str(len(self.values[name]))
            return mark("${" + inner + "}") if text is None or change or marks(text) else str(len(text))
        if not change:
            return self._variable(name) if text is None else text
        return self._changed(name, text, change, depth)

    def _element(self, value: Value | None, index: str) -> Value | None:
        items = [value] if isinstance(value, str) else value
        if items is None:
            return None
        if index in {"@", "*"}:
            return " ".join(items)
        number = self.arithmetic(index)
        return items[int(number)] if re.fullmatch(r"\d{1,9}", number) and int(number) < len(items) else None

    def _changed(self, name: str, text: str | None, change: str, depth: int) -> str:
        """${NAME:-default}, ${NAME:=default}, ${NAME:+other}, ${NAME%end}, ${NAME#begin}, ${NAME//a/b}, as far as no pattern is in them."""
        operator, rest = (change[:2], change[2:]) if change[0] == ":" else (change[:1], change[1:])
        if operator.lstrip(":") in {"-", "=", "?", "+"} and operator != ":":
            return self._defaulted(name, text, operator, self.fill(rest.strip("\"'"), depth + 1))
        if text is None or marks(text) or _PATTERN & set(change):
            return mark("${" + name + change + "}")
        old, _, new = change.lstrip("/").partition("/")
        if change[0] == "%":
            text = text.removesuffix(change.lstrip("%"))
        elif change[0] == "#":
            text = text.removeprefix(change.lstrip("#"))
        elif change[0] == "/" and old and "/" not in new:
            text = text.replace(old, new, -1 if change.startswith("//") else 1)
        else:
            text = mark("${" + name + change + "}")
        return text

    def _defaulted(self, name: str, text: str | None, operator: str, other: str) -> str:
        """The value of ${NAME:-other} and its kin; with a colon, an empty variable counts as one that is not set."""
        given = text if text or not operator.startswith(":") else None
        if operator.endswith("+"):
            return "" if given is None else other
        if given is not None:
            return given
        if operator.endswith("?"):
            return mark(f"${name}")
        self.unset.add(name)
        if operator.endswith("="):
            self.values[name] = other
        return other

    def _whole_array(self, word: Word) -> list[str] | None:
        """The elements, if the word is "${ARRAY[@]}" alone, quoted or not; unquoted elements are split at blanks."""
        parts = [part for part in word if part.text]
        if len(parts) != 1 or parts[0].quote == "'":
            return None
        match = re.fullmatch(r"\$\{([A-Za-z_]\w*)\[@\]\}", parts[0].text)
        name = match[1] if match else "@" if parts[0].text in {"$@", "${@}"} else ""
        value = self.values.get(name)
        if not isinstance(value, list):
            return None
        for item in value:
            self.count(item)
        return list(value) if parts[0].quote else [piece for item in value for piece in item.split()]
