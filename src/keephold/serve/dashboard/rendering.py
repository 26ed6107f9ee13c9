"""Render pages: the templates, their filters, and the frame of every page.

Every text that a template prints goes through `printable` (K4), which removes control sequences; no template has to ask
for it. HTML is escaped. Only templates and `coded` produce unescaped HTML.
"""

import json
import re
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from keephold.control.handle_json import allowed_text
from keephold.handles.form import as_typed, label_of, options_of
from keephold.store.base import user_metadata
from keephold.text import (
    ISOLATE,
    ISOLATED,
    byte_size,
    duration,
    exact,
    exact_json,
    is_seen,
    isolated,
    isolated_json,
    printable,
    readable_json,
    relative,
    time_of_day,
    to_json,
    to_utf8,
)
from keephold.turn.prompts import lasting

if TYPE_CHECKING:
    from jinja2 import Environment

    from keephold.control.control import Control

_AGENT = re.compile(r"/([^/]+)@[0-9a-f]{32}(?=/|\Z)")
"""One level in the name of a sub-agent's conversation (`ids.py`)."""
_CODE = re.compile(r"(?<!`)`(?=[^`\n]*[^`\s])[^`\n]+`(?!`)")
"""A text between two single backticks on one line."""
_FEW, _SHORT = 6, 40
"""The most options of a question, and characters of each, for one button per option."""
_ROWS, _COLUMNS = 20, 80
"""A text with more rows of this many columns is long."""
_DIGITS = 16
WHOLE, PART = 1 << 16, 1 << 12
"""Characters of a value that are shown: for arguments and results, and for one side of a journal entry."""
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
"""A string of JSON."""
_LINE_END = re.compile(r"(?<!\\)(?:\\\\)*\\n")
_BEGIN, _END, _BREAK = "\ufff9", "\ufffb", "\ufffa"
"""Characters that no shown text has, as they are not visible: they stand for tags until the text is escaped."""
_TAGS = {ISOLATE: "<bdi>", ISOLATED: "</bdi>", _BEGIN: '<span class="lines">', _END: "</span>", _BREAK: "<br>"}
HERE = Path(__file__).parent

SAID = {
    "answered": ("Answered.", "{} has its answer."),
    "allowed": ("Allowed: it runs.", "{} may run."),
    "denied": ("Denied: it does not run.", "{} does not run."),
    "several-allowed": ("Allowed.", "Allowed: {} calls."),
    "several-denied": ("Denied.", "Denied: {} calls."),
    "delivered": ("The model gets the result.", "The model gets the result of {}."),
    "withheld": ("The model does not get the result.", "The model does not get the result of {}."),
    "cancelled": ("Not answered: the call ends.", "{} gets no answer: the call ends."),
    "gone": ("Nobody needs an answer to that any more.", "{} does not need an answer any more."),
    "aborted": ("Aborted.", "{} is aborted."),
    "retried": ("Retried: this is the new handle.", "{} is retried: this is the new handle."),
    "stopped": ("It had stopped before.", "{} had stopped before."),
    "sent": ("Sent.", "Sent to {}."),
    "revoked": (
        "Revoked: these keys resolve nothing any more.",
        "The keys of {} are revoked: they resolve nothing any more.",
    ),
    "logged-out": ("Logged out: that browser needs the token again.", ""),
    "unpermitted": ("Revoked: the next call asks again.", ""),
    "unpermitted-before": ("It had ended before.", ""),
}
"""Messages about the last form, by the address's `?said=`: in general, and for something with a name (`&of=`)."""
_NAME = re.compile(r"[\w.:/@-]{1,80}")
"""Names that an address may contain: no sentence that somebody else wrote."""

ENDS = {
    "abort": "aborted",
    "timeout": "timed out",
    "cancel": "cancelled",
    "turn_end": "turn ended",
    "shutdown": "shut down",
    "crash": "crashed",
}
"""Words for an end that did not come from the tool."""


class Renderer:
    """Renders templates as pages."""

    def __init__(self, control: "Control") -> None:
        self._control = control
        self._templates = _environment()

    async def page(self, request: Request, template: str, *, status: int = 200, **what: Any) -> Response:
        """Return a page in the common frame: navigation, number of open requests, result of the last form.

        Templates see `what`, and `path`, `here` (the address with its query), `open_requests` (a count), `now`, `said`
        and `wrong` (the last form's result and problem).
        """
        query = request.url.query
        frame = {
            "path": request.url.path,
            "here": f"{request.url.path}?{query}" if query else request.url.path,
            "open_requests": await self._control.requests.count(),
            "now": time.time(),
            "said": said(request.query_params.get("said", ""), request.query_params.get("of", "")),
            "wrong": None,
        }
        html = self._templates.get_template(template).render(frame | what)
        return HTMLResponse(html, status, {"cache-control": "no-store"})

    async def problem(
        self, request: Request, message: str, status: int = 404, back: str = "/", title: str | None = None
    ) -> Response:
        """Return a page that says what was wrong, with a link back."""
        title = title or ("Not found" if status in (404, 410) else "That did not work")
        return await self.page(request, "problem.html", status=status, wrong=message, heading=title, back=back)


def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # slow to import, and only the server needs it

    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        auto_reload=False,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "duration": duration,
        "lasting": lasting,
        "relative": relative,
        "clock": time_of_day,
        "pretty": readable_json,
        "clipped": clipped,
        "compact": compact,
        "exact": exact,
        "to_agree": to_agree,
        "isolated": isolated_html,
        "verbatim": verbatim,
        "as_typed": as_typed,
        "choices": choices,
        "field_label": lambda field, name, required: label_of(name, field, required),
        "digest": lambda text: f"{zlib.crc32(to_utf8(text)):08x}",
        "lines": lines,
        "size": byte_size,
        "number": number,
        "mark": mark,
        "at": lambda moment, form: time.strftime(form, time.localtime(moment)),
        "card_key": card_key,
        "coded": coded,
        "first_line": first_line,
        "short_name": short_name,
        "agent_name": agent_name,
        "parameters": parameters,
        "allowed_text": allowed_text,
        "user_metadata": user_metadata,
    }
    environment.globals |= {"WHOLE": WHOLE, "PART": PART}
    environment.tests |= {"few": are_few, "long": is_long}
    return environment


def said(word: str, of: str) -> str | None:
    """Return the message about the last form."""
    plain, named = SAID.get(word, (None, ""))
    if plain is None or not named or not _NAME.fullmatch(of):
        return plain
    return escape(named).format(isolated_html(of))


def _shown(value: Any) -> Any:
    if type(value) is not str:  # `Markup` is a str too, and its text was made printable before
        return value
    return printable(value)


def coded(text: str) -> Markup:
    """Show text between backticks as code. The backticks stay, because the user must see everything they approve. The
    text is made printable and escaped first, so nothing else in it has an effect (K4)."""
    return Markup(_CODE.sub(r"<code>\g<0></code>", str(escape(printable(text)))))


def are_few(options: list[str]) -> bool:
    """Whether a question gets a button for each option: few, short, visible, and unchanged when a form sends them."""
    return len(options) <= _FEW and all(
        len(option) <= _SHORT and option.strip() and all(map(is_seen, option)) for option in options
    )


def compact(value: Any) -> str:
    """Return JSON in one line."""
    return exact_json(json.dumps(value, ensure_ascii=False))


def clipped(value: Any, most: int) -> tuple[str, int]:
    """Return a value as text of at most `most` characters, and the number of characters omitted."""
    if isinstance(value, str):
        text = value
    else:
        compact = to_json(value)
        text = readable_json(value) if len(compact) <= most else compact.decode("utf-8", "replace")
    return text[:most], max(0, len(text) - most)


def isolated_html(text: str) -> Markup:
    """Return JSON or `exact` text whose strings, or lines, cannot reorder what is beside them.

    A string of JSON that has several lines is shown as lines, in a frame of its own. Their ends stay visible.
    """
    marked = _STRING.sub(_as_lines, isolated_json(text)) if text.startswith("{") else isolated(text)
    html = str(escape(marked))
    for mark, tag in _TAGS.items():
        html = html.replace(mark, tag)
    return Markup(html)


def _as_lines(string: re.Match[str]) -> str:
    lined = _LINE_END.sub(lambda found: found[0] + _BREAK, string[0])
    return f"{_BEGIN}{lined}{_END}" if _BREAK in lined else lined


def choices(field: dict[str, Any]) -> list[tuple[str, str]] | None:
    """Return the values of a form's field that is a choice, and their titles."""
    return [("true", "Yes"), ("false", "No")] if field["type"] == "boolean" else options_of(field)


def verbatim(text: str) -> Markup:
    """Return a text for the value of a field, which a form sends back unchanged."""
    return Markup("".join(str(escape(each)) if is_seen(each) else f"&#{ord(each)};" for each in text))


def lines(text: str) -> int:
    """Return about how many lines a text takes on a small screen."""
    return sum(1 + len(line) // _COLUMNS for line in text.replace("\\n", "\n").split("\n"))


def is_long(text: str) -> bool:
    """Return whether a text may not be on the screen together with the buttons below it."""
    return lines(text) > _ROWS


def approved_text(asked: dict[str, Any]) -> str:
    """Return the text that an open request wants approved, as it is shown. Nothing for most questions."""
    if asked["kind"] == "result":
        return exact(asked["result"])
    if asked["question"] is not None:
        return to_agree(asked["question"])
    return readable_json(asked["arguments"]) if asked["kind"] == "permission" and asked["arguments"] else ""


def to_agree(question: dict[str, Any]) -> str:
    """Return the text of a question that the user must have seen before the answer yes, as it is shown: the text before
    the question, and the question itself if it is long. Nothing for other kinds of answers."""
    if question["answer_type"] != "Boolean":
        return ""
    before, text = exact(question["pre_amble"] or ""), exact(question["text"])
    return "\n\n".join(filter(None, (before, text if is_long(text) else "")))


def address(path: str, query: Mapping[str, Any]) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def asked_number(given: str | None) -> int | None:
    """Return a number of a page's query; None for anything else."""
    return int(given) if given is not None and given.isdecimal() and len(given) < _DIGITS else None


def number(count: float) -> str:
    """Return a count with separated thousands."""
    return f"{count:,.0f}"


def first_line(text: str, width: int = 200) -> str:
    """Return the first line of a text, shortened to `width`."""
    line = printable(text).strip().partition("\n")[0]
    return line if len(line) <= width else f"{line[: width - 1]}…"


def short_name(conversation: str) -> str:
    """Return a conversation's name without the uids of sub-agents: `main › reviewer`."""
    return _AGENT.sub(r" › \1", conversation)


def agent_name(conversation: str) -> str:
    """Return the last part of a sub-agent conversation's name: `reviewer`."""
    return short_name(conversation).rpartition(" › ")[2]


def parameters(tool: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return a tool's parameters: name, type in words, description. For a tool with actions, those of `spawn`."""
    schema = tool["parameters"]
    if tool["actions"]:
        schema = schema["oneOf"][0]
    required, known = schema.get("required", ()), schema.get("properties", {})
    return [
        (name, _type(each) + (", required" if name in required else ""), str(_of(each, "description") or ""))
        for name, each in known.items()
        if not tool["actions"] or name not in ("action", "id")
    ]


def _type(schema: Any) -> str:
    if _of(schema, "enum"):
        return "one of " + ", ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    kind = _of(schema, "type") or "anything"
    if kind == "array" and _of(schema, "items"):
        return f"array of {_type(schema['items'])}"
    return " or ".join(map(str, kind)) if isinstance(kind, list) else str(kind)


def _of(schema: Any, key: str) -> Any:
    return schema.get(key) if isinstance(schema, dict) else None  # `true` is a schema too


def card_key(asked: dict[str, Any]) -> str:
    """Return what identifies a request to the user: after a restart the same request has another id."""
    if asked["handle"] is None or asked["action"] in ("apply", "fetch", "abort") or asked["kind"] == "result":
        return str(asked["id"])  # one handle may have several at once
    question = asked["question"]
    same = asked["arguments"] if question is None else _asked(question)
    return f"{asked['handle']}-{zlib.crc32(json.dumps(same, sort_keys=True).encode()):08x}"


def _asked(question: dict[str, Any]) -> list[Any]:
    return [question[field] for field in ("id", "text", "pre_amble", "answer_type")]


def mark(fact: dict[str, Any]) -> tuple[str, str]:
    """Return the icon and the label of a handle's state."""
    if fact["state"] != "stopped":
        if fact["parked"]:
            return "parked", "parked"
        return fact["state"], "ready" if fact["state"] == "running" and fact.get("ready") else fact["state"]
    if fact["ended_by"] in ENDS:
        return ("failed" if fact["ended_by"] in ("timeout", "crash") else "ended"), ENDS[fact["ended_by"]]
    return ("done", "done") if fact["ok"] else ("failed", "failed")
