"""A shell script as simple commands: words with their quotes, arrays, here-documents, and what separates them. Nothing is expanded here.

A word is a tuple of parts; what stands in a part is raw text with its dollar signs, and how it was quoted decides what they mean.
"""

import re
from typing import NamedTuple

MAX_WORDS = 50_000  # of one script; the largest that we know has 2,000


class Part(NamedTuple):
    """A piece of a word. `quote`: "'" as it stands, '"' variables are filled in, "" they are filled in and split at blanks."""

    text: str
    quote: str


Word = tuple[Part, ...]


class Command(NamedTuple):
    """One simple command. `arrays`: index of the word "NAME=" -> the words in its parentheses. `heredoc`: raw text, and whether $ is
    filled in. `target`: the file that its output goes to. `end`: the operator after it, "" at the end of a line.
    """

    words: tuple[Word, ...]
    arrays: dict[int, tuple[Word, ...]]
    heredoc: tuple[str, bool] | None
    target: Word | None
    end: str
    line: int


_OPERATORS = re.compile(r"&&|\|\||;;|\|&|[;|&()\n]")
_REDIRECT = re.compile(r"(?:\d|&)?(?:<<<|<<-?|>>|>&|>\||<&|[<>])(?![(])")
_BARE, _QUOTED = re.compile(r"[^ \t\r\n;&|()<>'\"\\$`]+"), re.compile(r'[^"\\$`]+')
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=\(")


def split(text: str, line: int = 1) -> list[Command]:
    """The commands of a script, in order. `line`: of its first line."""
    return _Lexer(text, line).commands()


class _Lexer:
    def __init__(self, text: str, line: int) -> None:
        self.text, self.at, self.line = text, 0, line
        self.found: list[Command] = []
        self.number = 0
        self.pending: list[
            tuple[str, bool, bool]
        ] = []  # here-documents that begin at the next line: delimiter, tabs off, filled in
        self.waiting: int | None = None  # the command that the here-document belongs to
        self._reset()

    def _reset(self) -> None:
        self.words: list[Word] = []
        self.arrays: dict[int, tuple[Word, ...]] = {}
        self.target: Word | None = None
        self.start = self.line

    def commands(self) -> list[Command]:
        while self.at < len(self.text) and self.number < MAX_WORDS:
            self._blanks()
            if self.at >= len(self.text):
                break
            found = _OPERATORS.match(self.text, self.at)
            operator = found[0] if found else None
            if operator != "\n" and self._in_test() and (operator or self.text[self.at] in "<>"):
                self.words.append((Part(operator or self.text[self.at], "'"),))  # part of what [[ ... ]] compares
                self.at += len(operator or "<")
                continue
            if operator == "(" and self.text.startswith("((", self.at) and not self.words and self._arithmetic():
                continue
            redirect = (
                None if operator and not self.text.startswith("&>", self.at) else _REDIRECT.match(self.text, self.at)
            )
            if redirect:
                self._redirect(redirect[0])
            elif operator:
                self._end(operator)
            else:
                self._add_word()
        self._end("")
        return self.found

    def _in_test(self) -> bool:
        """Whether [[ is open."""
        plain = [word[0].text for word in self.words[:4] if len(word) == 1 and not word[0].quote]
        return "[[" in plain and (self.words[-1] != (Part("]]", ""),))

    def _blanks(self) -> None:
        """Passes over blanks, continued lines and comments."""
        while self.at < len(self.text):
            if self.text[self.at] in " \t\r":
                self.at += 1
            elif self.text.startswith("\\\n", self.at) or self.text.startswith("\\\r\n", self.at):
                self.at = self.text.index("\n", self.at) + 1
                self.line += 1
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def _end(self, operator: str) -> None:
        self.at += len(operator)
        if self.words or operator in {"(", ")", ";;"}:
            end = "" if operator == "\n" else operator
            self.found.append(Command(tuple(self.words), self.arrays, None, self.target, end, self.start))
        if operator == "\n":
            self.line += 1
            self._heredocs()
        self._reset()

    def _add_word(self) -> None:
        if not self.words:
            self.start = self.line
        array = _ARRAY.match(self.text, self.at)
        if array:
            self.at = array.end()
            self.arrays[len(self.words)] = self._array()
            self.words.append((Part(array[0][:-1], "'"),))
        else:
            self.words.append(self._word())
        self.number += 1

    def _array(self) -> tuple[Word, ...]:
        """The words up to the closing parenthesis."""
        words: list[Word] = []
        while self.number < MAX_WORDS:
            self._blanks()
            if self.at >= len(self.text):
                break
            if self.text[self.at] in ")\n;&|(<>":
                closed = self.text[self.at] == ")"
                self.line += self.text[self.at] == "\n"
                self.at += 1
                if closed:
                    break
                continue
            words.append(self._word())
            self.number += 1
        return tuple(words)

    def _word(self) -> Word:
        parts: list[Part] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\r\n;&|()<>":
                break
            if char == "'":
                end = self.text.find("'", self.at + 1)
                end = len(self.text) if end < 0 else end
                parts.append(Part(self.text[self.at + 1 : end], "'"))
                self._pass(end + 1)
            elif char == '"':
                parts += self._double()
            elif char == "\\":
                if self.text[self.at + 1 : self.at + 2] != "\n":
                    parts.append(Part(self.text[self.at + 1 : self.at + 2], "'"))
                self._pass(self.at + 2)
            else:
                parts.append(Part(self._plain(_BARE), ""))
        return tuple(parts)

    def _double(self) -> list[Part]:
        parts = [Part("", '"')]
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] != '"':
            if self.text[self.at] == "\\":
                following = self.text[self.at + 1 : self.at + 2]
                if following != "\n":
                    parts.append(Part(following if following in {"$", "`", '"', "\\"} else "\\" + following, "'"))
                self._pass(self.at + 2)
            else:
                parts.append(Part(self._plain(_QUOTED), '"'))
        self.at += 1
        return parts

    def _plain(self, run: re.Pattern[str]) -> str:
        """Raw text as far as `run` goes, with what stands in $(...), ${...} and `...` kept whole."""
        start = self.at
        while self.at < len(self.text):
            plain = run.match(self.text, self.at)
            if plain:
                self._pass(plain.end())
            elif self.text[self.at] == "$":
                bracket = self.text[self.at + 1 : self.at + 2] in {"(", "{"}
                self._pass(closing(self.text, self.at + 1) if bracket else self.at + 1)
            elif self.text[self.at] == "`":
                end = self.text.find("`", self.at + 1)
                self._pass(len(self.text) if end < 0 else end + 1)
            else:
                break
        return self.text[start : self.at]

    def _pass(self, end: int) -> None:
        end = min(end, len(self.text))
        self.line += self.text.count("\n", self.at, end)
        self.at = end

    def _arithmetic(self) -> bool:
        """((...)) as a command of the words "((" and what stands in it."""
        end = self.text.find("))", self.at, self.at + 1000)
        if end < 0:
            return False
        self.words = [(Part("((", "'"),), (Part(self.text[self.at + 2 : end], "'"),)]
        self._pass(end + 2)
        return True

    def _redirect(self, operator: str) -> None:
        self.at += len(operator)
        self._blanks()
        word = self._word()
        if "<<" in operator and "<<<" not in operator:
            delimiter = "".join(part.text for part in word)
            self.pending.append((delimiter, operator.endswith("-"), all(part.quote == "" for part in word)))
            self.waiting = len(self.found)
        elif operator.lstrip("1&") in {">", ">>", ">|"} and not operator.startswith(("2", "&")):
            self.target = word

    def _heredocs(self) -> None:
        """Takes the here-documents that begin here."""
        for delimiter, tabs_off, filled_in in self.pending:
            lines = []
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                raw = self.text[self.at : end]
                self.at, self.line = end + 1, self.line + 1
                content = raw.lstrip("\t") if tabs_off else raw
                if content.rstrip("\r") == delimiter:
                    break
                lines.append(content)
            if self.waiting is not None and self.waiting < len(self.found):
                owner = self.found[self.waiting]
                self.found[self.waiting] = owner._replace(heredoc=("\n".join(lines), filled_in))
        self.pending, self.waiting = [], None


def closing(text: str, at: int) -> int:
    """The end of what the bracket at `at` opens, quotes inside it considered; the end of the text if it stays open."""
    pairs = {"(": ")", "{": "}"}
    opened, closed, depth, quote = text[at], pairs[text[at]], 0, ""
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in opened + closed:
            depth += 1 if char == opened else -1
            if depth == 0:
                return at + 1
        at += 1
    return len(text)
