"""The wire form of a tool's state (S7), which a tool's process prints to report it.

A form is one JSON object with a `type` and no key beyond its form; optional keys may be left out. All other output is
text. `Whole` and `Lines` find the forms in a stream of output and pass the text: `Whole` for a one-shot command, whose
entire output may be one form, `Lines` for one that may print a form on any line.
"""

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec

from keephold.handles.question import Question
from keephold.handles.state import Failure, Ok

WHOLE_LIMIT = 1024 * 1024
"""Bytes of output that may still be one form; more is text."""
LINE_LIMIT = 64 * 1024
"""Bytes of a line that may still be one form."""

_FIRST = re.compile(rb"\S")


class WireState(msgspec.Struct, frozen=True):
    """It runs, and has this output."""

    content: str = ""


class Asks(msgspec.Struct, frozen=True):
    """It waits for an answer."""

    question: Question
    content: str = ""


class Ends(msgspec.Struct, frozen=True):
    """It is done. `content` is output that comes with an error."""

    outcome: Ok | Failure
    content: str = ""


Wire = WireState | Asks | Ends


class _Form(msgspec.Struct, tag_field="type", forbid_unknown_fields=True):
    pass


class _Running(_Form, tag="running"):
    content: str | None = None


class _Spawned(_Form, tag="spawned"):
    content: str | None = None


class _Question(Question, frozen=True, kw_only=True, forbid_unknown_fields=True):
    def plain(self) -> Question:
        return Question(**msgspec.structs.asdict(self))


class _Waiting(_Form, tag="waiting"):
    question: _Question
    content: str | None = None


class _NeedsInput(_Form, tag="needs_input"):
    question: _Question


class _Success(_Form, tag="success"):
    content: str | None = None


class _Err(msgspec.Struct, forbid_unknown_fields=True):
    message: str
    trace: tuple[str, ...] = ()
    transient: bool = False

    def outcome(self) -> Failure:
        return Failure(self.message, trace=self.trace, transient=self.transient)


class _Failed(_Err, tag_field="type", tag="error", forbid_unknown_fields=True):
    pass


class _Result(msgspec.Struct, forbid_unknown_fields=True):
    """Read `{"Ok": …}` or `{"Err": …}`, in either case of letters, and exactly one of them."""

    upper_ok: str | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="Ok")
    ok: str | msgspec.UnsetType = msgspec.UNSET
    upper_err: _Err | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="Err")
    err: _Err | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        self.outcome()

    def outcome(self) -> Ok | Failure:
        given = [value for value in (self.upper_ok, self.ok, self.upper_err, self.err) if value is not msgspec.UNSET]
        match given:
            case [str(text)]:
                return Ok(text)
            case [_Err() as error]:
                return error.outcome()
        raise ValueError("a result is either Ok or Err")


class _Stopped(_Form, tag="stopped"):
    """With a `result`, or with `content` and `error`."""

    result: _Result | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType | None = msgspec.UNSET
    error: _Err | msgspec.UnsetType | None = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.result is not msgspec.UNSET and not (self.content is self.error is msgspec.UNSET):
            raise ValueError("`result` comes alone")


_decoder = msgspec.json.Decoder(_Running | _Spawned | _Waiting | _NeedsInput | _Success | _Failed | _Stopped)


def parse_whole(stdout: bytes) -> Wire | None:
    """Return the form that this whole output is, ignoring white space around it; None if it is text."""
    stdout = stdout.strip()
    if len(stdout) > WHOLE_LIMIT or not stdout.startswith(b"{"):
        return None
    try:
        return _meaning(_decoder.decode(stdout))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def parse_line(line: bytes) -> Wire | None:
    """Return the form that this line is; None if it is text."""
    return parse_whole(line) if len(line) <= LINE_LIMIT else None


def _meaning(form: Any) -> Wire:
    match form:
        case _Running(content=content) | _Spawned(content=content):
            return WireState(content or "")
        case _Waiting(question=question, content=content):
            return Asks(question.plain(), content or "")
        case _NeedsInput(question=question):
            return Asks(question.plain())
        case _Success(content=content):
            return Ends(Ok(content or ""))
        case _Failed():
            return Ends(form.outcome())
        case _Stopped(result=_Result() as result):
            return Ends(result.outcome())
        case _Stopped(error=_Err() as error):
            return Ends(error.outcome(), form.content or "")
    return Ends(Ok(form.content or ""))


def answer_line(question: Question, answer: Any) -> bytes:
    """Encode an answer for a live process."""
    line = {"type": "answer", "id": question.id, "answer": answer}
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


class Whole:
    """Output of a one-shot command. Output that may still be a form is held back until the end; text passes."""

    def __init__(self, on_text: Callable[[bytes], None]) -> None:
        self._on_text = on_text
        self._held = bytearray()
        self._is_text = False

    def feed(self, data: bytes) -> None:
        if self._is_text:
            self._on_text(data)
            return
        self._held += data
        first = _FIRST.search(self._held)
        if len(self._held) > WHOLE_LIMIT or (first is not None and first[0] != b"{"):
            self._pass_as_text()

    def close(self) -> Wire | None:
        """The output has ended: return the form that all of it was, or None if it was text."""
        form = None if self._is_text else parse_whole(bytes(self._held))
        if form is None:
            self._pass_as_text()
        return form

    def _pass_as_text(self) -> None:
        self._is_text = True
        if self._held:
            self._on_text(bytes(self._held))
            self._held.clear()


class Lines:
    """Output of a live command. A line that is a form goes to `on_form`, all else to `on_text`, in the order printed.

    Only the beginning of a line that may be a form is held back, so a prompt without a line end is shown at once.
    """

    def __init__(self, on_text: Callable[[bytes], None], on_form: Callable[[Wire], None]) -> None:
        self._on_text = on_text
        self._on_form = on_form
        self._held = b""
        self._in_text = False
        """The line that the next data continues is text, and its beginning was passed already."""

    def feed(self, data: bytes) -> None:
        if self._in_text:
            after = data.find(b"\n") + 1
            self._let_through(data[: after or None])
            if not after:
                return
            data = data[after:]
        data = self._held + data
        at = after = 0
        # From brace to brace: checking every line would make text ten times as slow.
        while (brace := data.find(b"{", after)) >= 0 and (end := data.find(b"\n", brace)) >= 0:
            start, after = data.rfind(b"\n", 0, brace) + 1, end + 1
            form = parse_line(data[start:after])
            if form is not None:
                self._let_through(data[at:start])
                self._on_form(form)
                at = after
        rest = data[at:]
        unfinished = rest.rfind(b"\n") + 1
        may_be_form = len(rest) - unfinished <= LINE_LIMIT and rest[unfinished:].lstrip()[:1] in (b"", b"{")
        self._held = rest[unfinished:] if may_be_form else b""
        self._in_text = not may_be_form
        self._let_through(rest[:unfinished] if may_be_form else rest)

    def close(self) -> None:
        """The output has ended, perhaps in the middle of a line."""
        held, self._held = self._held, b""
        form = parse_line(held)
        if form is None:
            self._let_through(held)
        else:
            self._on_form(form)

    def _let_through(self, text: bytes) -> None:
        if text:
            self._on_text(text)
