"""Values in shell scripts: as positional parameters, never as text (F2, K3).

A template of a script is rendered with a mark for each value. `place` reads the script as the shell will, from left to
right, and replaces the marks by `"${1}"`, `"${2}"`, …, quoted as the context requires. The values travel beside the
script as arguments, so nothing in them can be syntax, even if a strange script is misread here.

The script's author is responsible for its use of a parameter: `eval`, `let` or `[[ … -eq … ]]` run their arguments, and
inside a function `$1` is the function's own. Where the shell itself would evaluate a value as arithmetic, only a whole
number is accepted.
"""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ash", "ksh"})
_WITH_VALUE = frozenset({"--rcfile", "--init-file", "--emulate"})
"""Long options of these shells that take the next element as their value."""
_FIND_RUNS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})


class UnplaceableValue(ValueError):
    """A value is where the shell would not expand a parameter. The message says what to write instead."""


class Marks:
    """The values of one rendering, and their marks in the text.

    A mark is framed by NULs, which neither a script nor an argument can hold, and has a random token, which no value
    can know: nothing in a value is ever read as a mark.
    """

    def __init__(self) -> None:
        self._token = secrets.token_hex(8)
        self._values: list[str] = []

    def put(self, value: str) -> str:
        """Return the mark for a value. Text made by a macro or a `{% set %}` block already has marks: it becomes one
        value.
        """
        if "\0" in value:
            value = _MARK.sub(lambda mark: mark[0] if (inner := self.value(mark)) is None else inner, value)
        self._values.append(value)
        return f"\0{self._token}.{len(self._values) - 1}\0"

    def value(self, mark: re.Match[str] | None) -> str | None:
        """Return the value of a match of `_MARK`; None if the mark is not ours."""
        return None if mark is None or mark[1] != self._token else self._values[int(mark[2])]


_MARK = re.compile("\0([0-9a-f]{16})\\.([0-9]+)\0")


@dataclass(frozen=True, slots=True)
class Script:
    """The positions in an argv of a shell and of its `-c` script."""

    shell: int
    text: int


def find_scripts(argv: Sequence[str]) -> list[Script]:
    """Find every `sh … -c script` in an argv, also behind `env`, `docker exec` and the like.

    An argument that only looks like a shell is treated as one: `grep bash -c file` is rarer than a shell that the call
    chooses, and the mistake is harmless.
    """
    found = []
    at = 0
    while at < len(argv):
        text = script_of(argv, at) if PurePath(argv[at]).name in SHELLS else None
        if text is not None:
            found.append(Script(at, text))
            at = text
        at += 1
    return found


def script_of(argv: Sequence[str], shell: int) -> int | None:
    """Find the first element that is not an option, if one of the options was `-c`: shells read `-c -e script` so."""
    command = False
    at = shell + 1
    while at < len(argv):
        word = argv[at]
        if word in ("-", "--"):
            at += 1
            break
        if word.startswith("--"):
            at += 2 if word in _WITH_VALUE else 1
        elif word[:1] in ("-", "+"):
            command = command or (word[0] == "-" and "c" in word)
            at += 1 + word.count("o") + word.count("O")
        else:
            break
    return at if command and at < len(argv) else None


def pass_values(argv: list[str], script: Script, marked: str, marks: Marks) -> None:
    """Put the script, with parameters for its marks, into `argv`, and the values behind the author's own arguments."""
    own = len(argv) - script.text - 1
    shell = PurePath(argv[script.shell]).name
    argv[script.text], values = place(marked, marks, first=max(own, 1), ansi_c=shell not in ("sh", "dash", "ash"))
    if not values:
        return
    if not _FIND_RUNS.isdisjoint(argv[: script.shell]):
        raise UnplaceableValue(
            "a value cannot reach a script that `find` runs for each file: `find` would read the values as arguments "
            "of its own; write the whole `find` as a script with `shell = true`"
        )
    if own == 0:
        argv.append(argv[script.shell])
    argv.extend(values)


def place(marked: str, marks: Marks, *, first: int, ansi_c: bool) -> tuple[str, list[str]]:
    """Return the script with `"${first}"` and so on for its marks, and the values in that order.

    `ansi_c` says whether the shell knows `$'…'`. Raises `UnplaceableValue`.
    """
    reading = _Reading(marked, marks, first, ansi_c)
    reading.read(0, len(marked), _Frame("code"))
    script = "".join(reading.out)
    if "\0" in script:
        raise UnplaceableValue(
            "a block changed a value on its way into the script; apply filters to the value itself: {{ x | upper }}"
        )
    return script, reading.values


@dataclass(slots=True)
class _Frame:
    """A context of the reading: the top or a `( )`, a pair of quotes, a `${ }`, a sum."""

    kind: str
    close: str = ""
    quoted: bool = False
    """An expansion here is one shell word already, and quotes around it would be text."""
    depth: int = 0
    """Open brackets of a sum."""
    cases: int = 0
    """Open `case … esac`, whose patterns have a `)` that closes nothing."""
    command: bool = True
    """A command may begin here; elsewhere `case` has no special meaning."""


_WORD = re.compile(r"(case(?=\s)|esac|if|then|else|elif|do|while|until|!|\{)(?=[\s;&|()]|\Z)")
_HERE = re.compile(r"""<<(-?)[ \t]*((?:'[^']*'|"[^"]*"|\\.|[^\s;&|()<>'"\\])+)""")
_SUBSCRIPT = re.compile(r"\$\{[#!]?\w+\[")
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+\Z")
_SPECIAL = frozenset("$!?-@*#0123456789")


class _Reading:
    """One pass over a script: `out` is the result, `values` the values of its parameters."""

    def __init__(self, text: str, marks: Marks, first: int, ansi_c: bool) -> None:
        self.text = text
        self.out: list[str] = []
        self.values: list[str] = []
        self._marks = marks
        self._first = first
        self._ansi_c = ansi_c
        self._stack: list[_Frame] = []
        self._end = len(text)
        self._here: list[tuple[str, bool, bool]] = []
        self._word_starts = True

    def read(self, at: int, end: int, frame: _Frame) -> None:
        outer = self._stack, self._end
        self._stack, self._end = [frame], end
        while at < end:
            at = self._step(at, self._stack[-1])
        self._stack, self._end = outer

    def _copy(self, at: int, count: int = 1) -> int:
        self.out.append(self.text[at : at + count])
        return at + count

    def _push(self, at: int, count: int, frame: _Frame) -> int:
        self._stack.append(frame)
        self._word_starts = True
        return self._copy(at, count)

    def _step(self, at: int, frame: _Frame) -> int:
        char = self.text[at]
        if frame.kind == "sum" and char in "([])" and not self._closes(at, frame):
            frame.depth += 1 if char in "([" else -1
            return self._copy(at)
        if self._closes(at, frame):
            self._stack.pop()
            self._word_starts = False
            return self._copy(at, len(frame.close))
        if self.text.startswith("\\\n", at):
            return self._copy(at, 2)
        if char in "\0\\$`'\"":
            frame.command = self._word_starts = False
        if char == "\0":
            return self._mark(at, "${%d}" if frame.quoted else '"${%d}"', frame.kind)
        if char == "\\":
            return self._backslash(at, frame)
        if char == "$":
            return self._dollar(at, frame)
        if char == "`":
            return self._backticks(at)
        if char == "'" and not frame.quoted:
            return self._single(at, "'\"${%d}\"'", escapes=False)
        if char == '"' and frame.kind in ("code", "brace"):
            return self._push(at, 1, _Frame("double", '"', quoted=True))
        return self._code(at, char, frame) if frame.kind == "code" else self._copy(at)

    def _closes(self, at: int, frame: _Frame) -> bool:
        if not frame.close or frame.depth or (frame.close == ")" and frame.cases):
            return False
        return self.text.startswith(frame.close, at)

    def _code(self, at: int, char: str, frame: _Frame) -> int:
        """Outside of quotes: comments, brackets, here-documents, and where commands and words begin."""
        starts, self._word_starts = self._word_starts, char in " \t\n;&|()<>"
        if char == "#" and starts:
            return self._comment(at)
        if starts and frame.command and (word := _WORD.match(self.text, at)):
            if word[1] in ("case", "esac"):
                frame.cases = max(0, frame.cases + (1 if word[1] == "case" else -1))
                frame.command = False
            return self._copy(at, len(word[1]))
        if char not in " \t":
            frame.command = char in "\n;&|()"
        if char == "(" and self._is_sum(at):
            return self._push(at, 2, _Frame("sum", "))", quoted=True))
        if char == "(":
            return self._push(at, 1, _Frame("code", ")"))
        if self.text.startswith("<<<", at):
            return self._copy(at, 3)
        if here := _HERE.match(self.text, at):
            return self._here_begins(at, here)
        if char == "\n" and self._here:
            return self._here_bodies(self._copy(at))
        return self._copy(at)

    def _mark(self, at: int, form: str, kind: str = "") -> int:
        mark = _MARK.match(self.text, at)
        value = self._marks.value(mark)
        if mark is None or value is None:
            return self._copy(at)
        if kind == "sum" and not _WHOLE_NUMBER.match(value):
            raise UnplaceableValue("inside arithmetic only a whole number can be put, because the shell evaluates it")
        self.out.append(form % (self._first + len(self.values)))
        self.values.append(value)
        return mark.end()

    def _backslash(self, at: int, frame: _Frame) -> int:
        if not self.text.startswith("\0", at + 1):
            return self._copy(at, 2)
        # Before a value it must not escape the quote or the dollar that we write.
        if frame.quoted:
            self.out.append("\\\\")
        return at + 1

    def _dollar(self, at: int, frame: _Frame) -> int:
        text = self.text
        following = text[at + 1 : at + 2]
        if following == "(" and self._is_sum(at + 1):
            return self._push(at, 3, _Frame("sum", "))", quoted=True))
        if following == "[":
            return self._push(at, 2, _Frame("sum", "]", quoted=True))
        if following == "(":
            return self._push(at, 2, _Frame("code", ")"))
        if following == "{":
            subscript = _SUBSCRIPT.match(text, at)
            at = self._push(at, 2, _Frame("brace", "}", quoted=frame.quoted))
            if subscript is None:
                return at
            return self._push(at, subscript.end() - at, _Frame("sum", "]", quoted=True))
        if following == "'" and self._ansi_c and not frame.quoted:
            return self._single(self._copy(at), "'\"${%d}\"$'", escapes=True)
        if following == "\0":
            self.out.append("\\$")
            return at + 1
        return self._copy(at, 2 if following in _SPECIAL else 1)

    def _is_sum(self, at: int) -> bool:
        """Whether the bracket at `at` opens `(( … ))`, and not a subshell in a subshell."""
        if not self.text.startswith("((", at):
            return False
        depth = 0
        for here in range(at + 1, self._end):
            depth += {"(": 1, ")": -1}.get(self.text[here], 0)
            if depth == 0:
                return self.text.startswith(")", here + 1)
        return True

    def _single(self, at: int, form: str, *, escapes: bool) -> int:
        """`'…'`, or with escapes the rest of `$'…'`."""
        at = self._copy(at)
        while at < self._end:
            char = self.text[at]
            if char == "'":
                return self._copy(at)
            at = self._mark(at, form) if char == "\0" else self._copy(at, 2 if escapes and char == "\\" else 1)
        return at

    def _backticks(self, at: int) -> int:
        """Backslashes are read twice in here, so a value next to one has no correct form; `$( )` avoids that."""
        end = at + 1
        while end < self._end and self.text[end] != "`":
            end += 2 if self.text[end] == "\\" else 1
        inside = self.text[at + 1 : end]
        if "\0" in inside and ("\\" in inside or "$\0" in inside):
            raise UnplaceableValue("a value cannot stand between backticks beside a backslash; write $( … ) instead")
        self._copy(at)
        self._word_starts = True
        self.read(at + 1, min(end, self._end), _Frame("code"))
        self._word_starts = False
        return self._copy(end)

    def _comment(self, at: int) -> int:
        while at < self._end and self.text[at] != "\n":
            at = self._mark(at, "${%d}") if self.text[at] == "\0" else self._copy(at)
        return at

    def _here_begins(self, at: int, here: re.Match[str]) -> int:
        word = here[2]
        if "\0" in word:
            raise UnplaceableValue("a value cannot be the word that ends a here-document; write a fixed word")
        literal = any(char in word for char in "'\"\\")
        self._here.append((re.sub(r"\\(.)|['\"]", r"\1", word), literal, here[1] == "-"))
        self._word_starts = False
        return self._copy(at, len(here[0]))

    def _here_bodies(self, at: int) -> int:
        """The lines after a `<<EOF`, up to `EOF`: text in which parameters are expanded, unless EOF was quoted."""
        while self._here and at < len(self.text):
            word, literal, tabs = self._here.pop(0)
            start = at
            while at < len(self.text):
                after = self.text.find("\n", at) + 1 or len(self.text)
                line = self.text[at:after].removesuffix("\n")
                if (line.lstrip("\t") if tabs else line) == word:
                    break
                at = after
            if not literal:
                self.read(start, at, _Frame("double", quoted=True))
            elif "\0" in self.text[start:at]:
                raise UnplaceableValue(
                    f"a here-document whose end word is quoted takes no value; write <<{word} unquoted"
                )
            else:
                self._copy(start, at - start)
            at = self._copy(at, len(self.text[at:].split("\n", 1)[0]) + 1) if at < len(self.text) else at
        self._word_starts = True
        return at
