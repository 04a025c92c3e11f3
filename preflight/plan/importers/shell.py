"""A shell script read as a person reads it: which commands it would run, with their variables filled in. Nothing is run.

Conditions are decided where the file decides them; what depends on anything else stays unknown. A variable that a branch may or may not
set is unknown from there on: a wrong value would be worse than none.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from preflight.errors import ConfigError
from preflight.plan.importers.shell_blocks import BRANCHING, OPENING, Blocks, both
from preflight.plan.importers.shell_expand import Variables, mark, shown
from preflight.plan.importers.shell_lex import MAX_WORDS, Command, Word, split
from preflight.plan.importers.shell_test import answer, is_test

MAX_RUNS, MAX_DEPTH = 2000, 4  # commands that are kept; bash -c in eval in bash -c
MAX_STEPS = 100_000  # commands, with those of eval, bash -c and other scripts
MAX_CANDIDATES = 50  # texts of one variable

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_DECLARING = {"export", "declare", "local", "readonly", "typeset", "set"}
_READING = {"read", "mapfile", "readarray", "unset", "getopts", "printf", "let"}
_SHELLS = {"bash", "sh", "/bin/bash", "/bin/sh", "/usr/bin/bash", "zsh"}
_QUIET = {
    "((",
    "echo",
    "cat",
    "mkdir",
    "cd",
    "set",
    "printf",
    "exit",
    "ls",
    "cp",
    "mv",
    "rm",
    "tee",
    "sleep",
    "true",
    ":",
    "return",
    "shift",
}


class Run(NamedTuple):
    """A command that would be run. `words`: with what can't be known as marks. `line`: where it begins."""

    words: tuple[str, ...]
    line: int


class Document(NamedTuple):
    """A file that the script writes from a here-document."""

    text: str
    line: int


class Script:
    """The result of reading a script: `runs`, `documents` by the name they are written to, `variables`, `notes`."""

    def __init__(
        self, text: str, source: str, environment: Mapping[str, str], others: Mapping[str, str] | None = None
    ) -> None:
        self._others = others or {}  # base name -> text of other scripts, for source and for bash NAME
        self._steps = 0
        self.variables = Variables(source)
        self.variables.values.update(environment)
        self.runs: list[Run] = []
        self.documents: dict[str, Document] = {}
        self.lines: dict[str, int] = {}  # variable -> line of its last assignment
        self.candidates: dict[str, list[str]] = {}  # variable that is unknown -> texts that branches may have given it
        self.notes: list[str] = []
        self._blocks = Blocks()
        self._last: bool | None = True  # what the command before answered, as && and || see it
        self._condition: bool | None = None  # the same, as if and while see it: only a test is known to succeed
        commands = split(text)
        if sum(len(command.words) for command in commands) >= MAX_WORDS:
            raise ConfigError(source, f"has {MAX_WORDS} words or more, which no job script has")
        self._read(commands, (), 0)
        self.notes += [
            f"{source}: ${name} is not set in the file: its default there was taken"
            for name in sorted(self.variables.unset)
        ]

    def _read(self, commands: list[Command], prefix: tuple[str, ...], depth: int) -> None:
        joint = ""
        self._steps += len(commands)
        if self._steps > MAX_STEPS:
            raise ConfigError(
                self.variables.source, f"comes to {MAX_STEPS} commands, with all that it hands to a shell"
            )
        for command in commands:
            self._one(command, joint, prefix, depth)
            joint = command.end

    def _one(self, command: Command, joint: str, prefix: tuple[str, ...], depth: int) -> None:
        words = self._control(command)
        if words is None:
            return
        state = self._blocks.state
        if joint == "&&":
            state = both(state, self._last)
        elif joint == "||":
            state = both(state, None if self._last is None else not self._last)
        if state is False:
            self.variables.skipped |= _assigned(words)
        if state is False or not words:
            return
        negated = _bare(words[:1]) == "!"
        words = words[negated:]
        offset = len(command.words) - len(words)
        arrays = {index - offset: items for index, items in command.arrays.items()}
        count = self._assign(words, arrays, command.line, certain=state is True)
        self._last, self._condition = True, None  # a command is taken to succeed, but nothing is decided by that
        text = [piece for word in words[count:] for piece in self.variables.words(word)]
        if is_test(text):
            found = answer(text, self._unset)
            self._last = None if found is None else found != negated
            self._condition = both(state, self._last)
        elif text:
            self._run(command, text, prefix, depth, certain=state is True)

    def _control(self, command: Command) -> tuple[Word, ...] | None:
        """The words after keywords such as if and then, which open and close blocks; None where nothing is left to do."""
        words = command.words
        if self._blocks.awaits_pattern and _bare(words[:1]) != "esac":
            patterns = [self.variables.text(word) for word in words if _bare((word,)) != "in"]
            self._blocks.pattern(patterns, command.end)
            return None
        while words:
            keyword = _bare(words[:1])
            if keyword in OPENING:
                self._blocks.open(keyword)
            elif keyword in BRANCHING:
                self._blocks.branch(keyword, self._condition)
            elif keyword == "case" and len(words) > 1:
                self._blocks.open(keyword, word=self.variables.text(words[1]))
                return None
            elif keyword == "for" and len(words) > 1:
                self._loop(words)
                return None
            elif keyword not in {"{", "}", "time", "function", "exec", "nohup"}:
                break
            words = words[1:]
        if command.end == ";;" and self._blocks.in_case:
            self._one(command._replace(words=words, end=";"), "", (), 0)
            self._blocks.next_case()
            return None
        return words

    def _loop(self, words: tuple[Word, ...]) -> None:
        """for NAME in A B C: the body is read once; the variable is known only if there is one value."""
        name = _bare(words[1:2])
        values = [piece for word in words[3:] for piece in self.variables.words(word)]
        if name:
            self.variables.values[name] = values[0] if len(values) == 1 else mark(f"${name}")
        self._blocks.open("for", active=True if len(values) == 1 else None)

    def _unset(self, name: str) -> bool:
        """Whether a variable that stayed unknown is one that the file never sets: then it is taken as not set, and said so."""
        if name in self.variables.values:
            return False
        self.variables.unset.add(name)
        return True

    def _assign(self, words: tuple[Word, ...], arrays: dict[int, tuple[Word, ...]], line: int, *, certain: bool) -> int:
        """Carries out NAME=value at the begin of a command, and export NAME=value. The number of words that are done with."""
        declares = _bare(words[:1]) in _DECLARING
        for index, word in enumerate(words):
            if index == 0 and declares:
                continue
            raw = "".join(part.text for part in word)
            match = _ASSIGNMENT.match(raw)
            if match is None or (word[0].quote and index not in arrays):
                if declares:
                    continue
                return index
            name, adds = match[1], bool(match[2])
            if index in arrays:
                items = [piece for item in arrays[index] for piece in self.variables.words(item)]
                self._set(name, items, line, adds=adds, certain=certain)
            else:
                head = word[0]._replace(text=word[0].text[len(name) + 1 + adds :])
                self._set(name, self.variables.text((head, *word[1:])), line, adds=adds, certain=certain)
        return len(words)

    def _set(self, name: str, value: str | list[str], line: int, *, adds: bool, certain: bool) -> None:
        old = self.variables.values.get(name)
        if adds and isinstance(value, list):
            value = ([old] if isinstance(old, str) else old or []) + value
        elif adds and isinstance(value, str):
            value = (old if isinstance(old, str) else " ".join(old or [])) + value
            self.variables.count(value)
        if not certain and old != value:
            texts = self.candidates.setdefault(name, [])
            texts += [v if isinstance(v, str) else " ".join(v) for v in (old, value) if v is not None][
                : MAX_CANDIDATES - len(texts)
            ]
            value = mark(f"${name}")
            note = f"line {line}: ${name} depends on a condition that the file does not decide"
            if note not in self.notes and len(self.notes) < 100:
                self.notes.append(note)
        self.variables.values[name] = value
        self.lines[name] = line

    def _run(self, command: Command, text: list[str], prefix: tuple[str, ...], depth: int, *, certain: bool) -> None:
        """Keeps a command; what it hands to a shell is read in its place."""
        name = text[0]
        if name == "((" or name in _READING:
            self._change(text, certain=certain)
        elif self._other(command, text, prefix, depth):
            return
        elif name in {"source", "."}:
            self.notes.append(f"line {command.line}: reads {shown(' '.join(text[1:2]))}, which was not given")
        if command.heredoc:
            self._heredoc(command, text, prefix, depth)
        if name in _QUIET or len(self.runs) >= MAX_RUNS:
            return
        inner = " ".join(text[1:]) if name == "eval" else _shell_text(text)
        if inner is None or depth >= MAX_DEPTH:
            self.runs.append(Run((*prefix, *text), command.line))
            return
        before = () if name == "eval" else tuple(text[: text.index("-c") if "-c" in text else len(text)])
        self._read([c._replace(line=command.line) for c in split(inner)], (*prefix, *before), depth + 1)

    def _other(self, command: Command, text: list[str], prefix: tuple[str, ...], depth: int) -> bool:
        """Reads another script in place of source NAME, of bash NAME and of NAME itself, if it was given."""
        start = next((i for i, word in enumerate(text[:-1]) if word in {*_SHELLS, "source", "."}), -1)
        at = next((i for i in range(start + 1, len(text)) if not text[i].startswith("-")), len(text))
        content = self._others.get(text[at].rsplit("/", 1)[-1]) if at < len(text) else None
        if content is None or depth >= MAX_DEPTH:
            return False
        values = self.variables.values
        before = {key: values[key] for key in [*"123456789", "#", "@"] if key in values}
        arguments = text[at + 1 :]
        if arguments:
            values.update({str(i): argument for i, argument in enumerate(arguments[:9], 1)})
            values.update({"#": str(len(arguments)), "@": arguments})
        commands = [c._replace(line=command.line) for c in split(content)]
        self._read(commands, (*prefix, *text[: max(start, 0)]), depth + 1)
        for key in [*"123456789", "#", "@"]:
            values.pop(key, None)
        values.update(before)
        return True

    def _heredoc(self, command: Command, text: list[str], prefix: tuple[str, ...], depth: int) -> None:
        raw, filled_in = command.heredoc or ("", False)
        content = self.variables.fill(raw) if filled_in else raw
        names = (
            [self.variables.text(command.target)] if command.target else [w for w in text[1:] if not w.startswith("-")]
        )
        if text[0] in {*_SHELLS, "sbatch", "srun"} and depth < MAX_DEPTH:
            self._read([c._replace(line=command.line) for c in split(content)], prefix, depth + 1)
        elif names:
            self.documents[names[-1]] = Document(content, command.line)

    def _change(self, text: list[str], *, certain: bool) -> None:
        """((NAME = ...)), read NAME and the like."""
        expression = " ".join(text[1:])
        match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=([^=].*)", expression)
        if text[0] in {"((", "let"} and match and certain:
            self.variables.values[match[1]] = self.variables.arithmetic(match[2])
            return
        if text[0] == "((" and not re.search(r"\+\+|--|[-+*/%]=", expression):
            self._last = None
            return
        for name in re.findall(r"[A-Za-z_]\w*", expression):
            if name in self.variables.values or text[0] in {"read", "mapfile", "readarray"}:
                self.variables.values[name] = mark(f"${name}")


def _assigned(words: tuple[Word, ...]) -> set[str]:
    """Names that a command would give a value that is not their own."""
    found = set()
    for word in words:
        raw = "".join(part.text for part in word)
        match = _ASSIGNMENT.match(raw)
        if match is None:
            break
        if not re.search(rf"\$\{{?{match[1]}\b", match[3]):
            found.add(match[1])
    return found


def _bare(words: tuple[Word, ...]) -> str:
    """The first word if it is unquoted, else empty."""
    return "".join(part.text for part in words[0]) if words and all(part.quote == "" for part in words[0]) else ""


def _shell_text(text: list[str]) -> str | None:
    """What a command hands to bash -c, None if it doesn't."""
    for index, word in enumerate(text[:-2]):
        if word in _SHELLS:
            flags = text[index + 1 : index + 4]
            at = next((i for i, flag in enumerate(flags) if re.fullmatch(r"-[a-z]*c", flag)), None)
            if at is not None and index + at + 2 < len(text):
                return text[index + at + 2]
    return None
