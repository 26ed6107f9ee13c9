"""How pages are made: the templates, how they print things, and what every page has.

Whatever a template prints goes through `printable` (K4): control sequences are gone, whoever wrote the text and whether
the template's author thought of it or not. HTML is escaped. Nothing is marked as safe but what templates and `coded`
wrote.
"""

import json
import re
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from keephold.text import duration, printable, relative, time_of_day

if TYPE_CHECKING:
    from jinja2 import Environment

    from keephold.control.control import Control

_AGENT = re.compile(r"/([^/]+)@[0-9a-f]{32}(?=/|\Z)")
"""A step down in the name of a sub-agent's conversation (`turn/lineage.py`)."""
_CODE = re.compile(r"(?<!`)`(?=[^`\n]*[^`\s])[^`\n]+`(?!`)")
"""Something between two backticks, on one line; more than one in a row is something else."""
_FEW, _SHORT = 6, 40
"""Options, and characters of each, up to which a question has a button for each."""
HERE = Path(__file__).parent

SAID = {
    "answered": ("Answered.", "{} has its answer."),
    "allowed": ("Allowed: it runs.", "{} may run."),
    "denied": ("Denied: it does not run.", "{} does not run."),
    "delivered": ("The assistant gets the result.", "The assistant gets the result of {}."),
    "withheld": ("The assistant does not get the result.", "The assistant does not get the result of {}."),
    "cancelled": ("Not answered: the call ends.", "{} gets no answer: the call ends."),
    "gone": ("Nobody needs an answer to that any more.", "{} does not need an answer any more."),
    "aborted": ("Aborted.", "{} is aborted."),
    "stopped": ("It had stopped before.", "{} had stopped before."),
    "sent": ("Sent.", "Sent to {}."),
    "revoked": (
        "Revoked: these keys resolve nothing any more.",
        "The keys of {} are revoked: they resolve nothing any more.",
    ),
}
"""What was done by the form that led here, by the word in the address (`?said=`), and the same of something that has a
name (`&of=`)."""
_NAME = re.compile(r"[\w.:/@-]{1,80}")
"""What an address may say that it was: no sentence of somebody else's."""

ENDS = {
    "abort": "aborted",
    "timeout": "timed out",
    "cancel": "cancelled",
    "turn_end": "turn ended",
    "shutdown": "shut down",
    "crash": "crashed",
}
"""The words for an end that was not the tool's own."""


class Look:
    """Makes pages of templates."""

    def __init__(self, control: "Control") -> None:
        self._control = control
        self._templates = _environment()

    async def page(self, request: Request, template: str, *, status: int = 200, **what: Any) -> Response:
        """A page in the frame that all have: the navigation, how much needs the person, what was just done.

        Templates see `what`, and `path`, `here` (the address with its query), `open_requests` (a count), `now`, `said`
        and `wrong`: what was just done, and what was wrong with it. `turnless`: uids of handles that belong to no turn.
        """
        query = request.url.query
        frame = {
            "path": request.url.path,
            "here": f"{request.url.path}?{query}" if query else request.url.path,
            "open_requests": await self._control.requests.count(),
            "now": time.time(),
            "said": said(request.query_params.get("said", ""), request.query_params.get("of", "")),
            "wrong": None,
            "turnless": frozenset(),
        }
        html = self._templates.get_template(template).render(frame | what)
        return HTMLResponse(html, status, {"cache-control": "no-store"})

    async def problem(
        self, request: Request, message: str, status: int = 404, back: str = "/", title: str | None = None
    ) -> Response:
        """A page that says what was wrong, and the way back."""
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
        "relative": relative,
        "clock": time_of_day,
        "pretty": pretty,
        "size": size,
        "number": number,
        "mark": mark,
        "at": lambda moment, form: time.strftime(form, time.localtime(moment)),
        "card_key": card_key,
        "coded": coded,
        "first_line": first_line,
        "short_name": short_name,
        "agent_name": agent_name,
        "parameters": parameters,
    }
    environment.tests["few"] = are_few
    return environment


def said(word: str, of: str) -> str | None:
    """What was just done, in words."""
    plain, named = SAID.get(word, (None, ""))
    return named.format(of) if plain is not None and _NAME.fullmatch(of) else plain


def is_turnless(fact: dict[str, Any]) -> bool:
    """Whether a handle belongs to a desk (`turn/single_calls.py`), as those of MCP clients do, and not to a turn."""
    return str(fact["turn"]).startswith("d-")


def _shown(value: Any) -> Any:
    if type(value) is not str:  # `Markup` is a str, too, and what it holds has been through here
        return value
    return value if value.isprintable() else printable(value)


def coded(text: str) -> Markup:
    """A text in which what stands between backticks looks like code, and they with it: who approves something sees all
    of it. Nothing else in it means anything: it is made printable and escaped before backticks are looked for (K4)."""
    return Markup(_CODE.sub(r"<code>\g<0></code>", str(escape(printable(text)))))


def are_few(options: list[str]) -> bool:
    """Whether the options of a question have a button each: they are few and short, and can be seen and sent as they
    are."""
    return len(options) <= _FEW and all(
        len(option) <= _SHORT and option.strip() and option.isprintable() for option in options
    )


def pretty(value: Any) -> str:
    """JSON to be read. What cannot be seen is written as an escape: who approves something sees all of it."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return "".join(each if each.isprintable() or each == "\n" else _escape(each) for each in text)


def _escape(character: str) -> str:
    return json.dumps(character)[1:-1]


def size(count: int) -> str:
    """Bytes, to be read: `512 B`, `1.5 kB`, `12 MB`."""
    amount, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.1f} {unit}" if unit != "B" and amount < 10 else f"{amount:.0f} {unit}"


def number(count: float) -> str:
    """A count with its thousands apart."""
    return f"{count:,.0f}"


def first_line(text: str, width: int = 200) -> str:
    """The first line of a text, cut if need be."""
    line = printable(text).strip().partition("\n")[0]
    return line if len(line) <= width else f"{line[: width - 1]}…"


def short_name(conversation: str) -> str:
    """A conversation's name without the uids of sub-agents: `main › reviewer`."""
    return _AGENT.sub(r" › \1", conversation)


def agent_name(conversation: str) -> str:
    """The last part of the name of a sub-agent's conversation: `reviewer`."""
    return short_name(conversation).rpartition(" › ")[2]


def parameters(tool: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The parameters of a tool: name, type in words, description. Of one with actions, those that a spawn takes."""
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
    return schema.get(key) if isinstance(schema, dict) else None  # `true` is a schema, too


def card_key(asked: dict[str, Any]) -> str:
    """Return what identifies a request to the user: after a restart the same request has another id."""
    if asked["handle"] is None or asked["action"] in ("apply", "fetch", "abort") or asked["kind"] == "result":
        return str(asked["id"])  # one handle may have several of them at once
    question = asked["question"]
    same = asked["arguments"] if question is None else [question["id"], question["text"], question["answer_type"]]
    return f"{asked['handle']}-{zlib.crc32(json.dumps(same, sort_keys=True).encode()):08x}"


def mark(fact: dict[str, Any]) -> tuple[str, str]:
    """How a handle stands, as a badge shows it: its shape and its word."""
    if fact["state"] != "stopped":
        return ("parked", "parked") if fact["parked"] else (fact["state"], fact["state"])
    if fact["ended_by"] in ENDS:
        return ("failed" if fact["ended_by"] in ("timeout", "crash") else "ended"), ENDS[fact["ended_by"]]
    return ("done", "done") if fact["ok"] else ("failed", "failed")
