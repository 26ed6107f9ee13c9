"""The actions of the dashboard's forms: answer, abort, retry, send, revoke, log out. Each redirects to the page with
the form; `retry` redirects to the new handle.

A refusal is a page that says why. The door checks who may send forms (K1), not this module.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from keephold.errors import KeepholdError
from keephold.handles.form import MOST_FIELDS, read_form
from keephold.serve.dashboard.rendering import Renderer, approved_text, card_key, is_long, short_name, to_agree
from keephold.serve.operations import read_body
from keephold.text import to_json

if TYPE_CHECKING:
    from keephold.control.control import Control
    from keephold.serve.sessions import Sessions

_BYTES = 4 * 1024 * 1024
"""The largest form: arguments of [limits] arguments_bytes with every character escaped."""
_STATUS = {
    "handle_not_found": 404,
    "handle_expired": 410,
    "already_stopped": 409,
    "not_running": 409,
    "not_retryable": 409,
    "batch_rejected": 409,
    "limit_exceeded": 413,
}
_DONE = {
    ("permission", "approve"): "allowed",
    ("permission", "edit"): "allowed",
    ("permission", "deny"): "denied",
    ("result", "approve"): "delivered",
    ("result", "edit"): "delivered",
    ("result", "deny"): "withheld",
}
"""The message key for a decision about a kind of request; see `rendering.SAID`."""

_NOTHING = {"status": "again", "problem": "nothing was chosen, so nothing is answered yet: choose one of the answers"}
"""The reply to a form sent by none of its buttons; see `no_answer` in macros.html."""

_UNSEEN = {"status": "again", "problem": "nothing is approved yet: look at all of the lines, then say that you have"}
"""The reply to an approval of a long text that was not all on the screen; see `whole` in macros.html."""

_FIELD = "field."
"""Before the name of a question's field in the name of its input."""

Fields = dict[str, str]
Acts = Callable[[Request, Fields], Awaitable[Response]]
Home = Callable[..., Awaitable[Response]]


class _Refused(Exception):
    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.message, self.status = message, status


def routes(renderer: Renderer, control: "Control", sessions: "Sessions", home: Home) -> list[BaseRoute]:
    """Return the routes of forms. `home` shows a request again whose answer was not taken."""
    forms = Forms(control, sessions, home)

    def post(path: str, act: Acts) -> Route:
        return Route(path, _taken(renderer, act), methods=["POST"])

    return [
        post("/do/requests/{id}", forms.decide),
        post("/do/handles/{uid}/abort", forms.abort),
        post("/do/handles/{uid}/retry", forms.retry),
        post("/do/handles/{uid}/apply", forms.apply),
        post("/do/requests", forms.decide_several),
        post("/do/token", forms.token),
        post("/do/keys/revoke", forms.revoke),
        post("/do/sessions/end", forms.end_session),
        post("/do/permissions/{id}/revoke", forms.revoke_permission),
    ]


class Forms:
    """The action of each form."""

    def __init__(self, control: "Control", sessions: "Sessions", home: Home) -> None:
        self._control = control
        self._sessions = sessions
        self._home = home

    async def decide(self, request: Request, fields: Fields) -> Response:
        asked = await self._meant(request.path_params["id"], fields.get("card", ""))
        if asked is None:
            return _back(fields, "gone")
        id = asked["id"]
        of = asked["tool"] if asked["kind"] in ("permission", "result") else asked["handle_id"] or asked["tool"]
        filled_in = _form_texts(asked["question"], fields)
        decision: dict[str, Any] = {name: fields[name] for name in ("decision", "reason", "value") if name in fields}
        decision |= {"remember": "remember" in fields, "digest": fields.get("digest") or None}
        if (text := approved_text(asked)) and fields.get("decision") == "edit" and fields.get("value") == text:
            decision |= {"decision": "approve", "remember": False}  # unchanged: the original, not its escapes
        answer: Mapping[str, Any]
        if not _says_something(fields):
            answer = _NOTHING
        elif _approves(fields) and is_long(text) and "seen" not in fields:
            answer = _UNSEEN
        else:
            answer = await self._control.decide(id, decision, by="the dashboard")
        if answer["status"] == "again":
            typed = None if asked["kind"] == "secret" else filled_in or fields.get("value")
            draft = {"problem": answer["problem"], "text": typed, "remember": decision["remember"]}
            return await self._home(request, status=422, drafts={id: draft})
        if answer["status"] == "gone":
            return _back(fields, "gone", of)
        word = fields["decision"]
        return _back(fields, "cancelled" if word == "cancel" else _DONE.get((asked["kind"], word), "answered"), of)

    async def decide_several(self, request: Request, fields: Fields) -> Response:
        """Deny, or allow, permissions of one group of cards. `cards` are their ids with the digests of what was shown;
        only cards that were fully shown may be allowed together, which prompts.js knows."""
        decision = fields.get("decision")
        if decision not in ("approve", "deny") or (decision == "approve" and fields.get("seen") != "yes"):
            raise _Refused(_UNSEEN["problem"], 422)
        taken = 0
        for card in fields.get("cards", "").split():
            id, _, digest = card.partition("/")
            asked = await self._control.requests.get(id)
            if asked is not None and asked["kind"] == "permission" and asked["digest"] == digest:
                said = {"decision": decision, "reason": fields.get("reason", ""), "digest": digest}
                taken += (await self._control.decide(id, said, by="the dashboard"))["status"] == "taken"
        return _back(fields, "several-allowed" if decision == "approve" else "several-denied", str(taken))

    async def token(self, request: Request, fields: Fields) -> Response:
        """Return the owner's token, which a page copies and does not show."""
        return PlainTextResponse(self._sessions.token, headers={"cache-control": "no-store"})

    async def _meant(self, id: str, card: str) -> dict[str, Any] | None:
        """Return the request of an id. If an earlier server gave the id, return the same request of this one."""
        asked = await self._control.requests.get(id)
        handle, dash, _ = card.rpartition("-")
        if asked is not None or not dash:
            return asked
        same = (each for each in await self._control.requests.page(handle=handle) if card_key(each) == card)
        asked = next(same, None)
        return asked if asked is not None and _giver(asked["id"]) != _giver(id) else None

    async def abort(self, request: Request, fields: Fields) -> Response:
        uid = request.path_params["uid"]
        fact = await self._control.runtime_view.handle(uid)
        if fact["state"] == "stopped":
            return _back(fields, "stopped", fact["id"])
        await self._control.abort(uid)
        return _back(fields, "aborted", fact["id"])

    async def retry(self, request: Request, fields: Fields) -> Response:
        """Repeat a call that failed or was ended."""
        made = await self._control.retry(request.path_params["uid"])
        return _back({"next": f"/handles/{made['uid']}"}, "retried", made["id"])

    async def apply(self, request: Request, fields: Fields) -> Response:
        """Send a handle a text, or the answer to its question."""
        if "value" not in fields:
            raise _Refused("there is nothing to send: choose or type an answer", 422)
        uid, question = request.path_params["uid"], fields.get("question")
        if question is None:
            await self._control.apply(uid, fields["value"])
        else:  # the question of the form, and no other
            asked = (await self._control.runtime_view.handle(uid))["question"]
            _form_texts(asked, fields)
            if asked is not None and fields["value"] != "false" and is_long(to_agree(asked)) and "seen" not in fields:
                raise _Refused(_UNSEEN["problem"], 422)
            await self._control.answer(uid, fields["value"], question=question)
        return _back(fields, "sent")

    async def revoke(self, request: Request, fields: Fields) -> Response:
        """Revoke the open keys of a conversation."""
        if not fields.get("conversation"):
            raise _Refused("no conversation was named whose keys are to be revoked", 422)
        await self._control.revoke(fields["conversation"])
        return _back(fields, "revoked", short_name(fields["conversation"]))

    async def end_session(self, request: Request, fields: Fields) -> Response:
        """End a session, or all of them. The door then asks this browser for the token, if its own has ended."""
        if "all" in fields:
            await self._sessions.end()
        elif not await self._sessions.end(fields.get("id", "")):
            raise _Refused("that session has ended before", 404)
        return _back(fields, "logged-out")

    async def revoke_permission(self, request: Request, fields: Fields) -> Response:
        ended = await self._control.revoke_permission(request.path_params["id"])
        return _back(fields, "unpermitted" if ended["revoked"] else "unpermitted-before")


def _form_texts(question: dict[str, Any] | None, fields: Fields) -> dict[str, str]:
    """Return the texts of a form's fields, and make them the value that is sent."""
    kind = question["answer_type"] if question is not None else None
    if not isinstance(kind, dict) or "Form" not in kind:
        return {}
    texts = {name.removeprefix(_FIELD): text for name, text in fields.items() if name.startswith(_FIELD)}
    if "value" in fields:
        fields["value"] = to_json(read_form(kind["Form"], texts)).decode()
    return texts


def _says_something(fields: Fields) -> bool:
    return "decision" in fields and (fields["decision"] != "answer" or "value" in fields)


def _approves(fields: Fields) -> bool:
    """Return whether a decision lets something happen that must have been seen. Most answers of questions have nothing
    to be seen; of those that have, only no allows nothing."""
    return fields["decision"] in ("approve", "edit") or (fields["decision"] == "answer" and fields["value"] != "false")


def _giver(id: str) -> str:
    """Return the part that ids of one server share; it tells a second answer from a repeated question."""
    return id.rpartition("-")[0]


def _taken(renderer: Renderer, act: Acts) -> Callable[[Request], Awaitable[Response]]:
    """Return a view that reads the form and shows a refusal."""

    @wraps(act)
    async def view(request: Request) -> Response:
        fields: Fields = {}
        try:
            fields = await _fields(request)
            return await act(request, fields)
        except _Refused as refusal:
            message, status = refusal.message, refusal.status
        except KeepholdError as error:
            message, status = error.message, _STATUS.get(error.code, 422)
        return await renderer.problem(request, message, status, back=_place(fields))

    return view


async def _fields(request: Request) -> Fields:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise _Refused("forms are sent as application/x-www-form-urlencoded", 415)
    body = await read_body(request, _BYTES)
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=20 + MOST_FIELDS, errors="strict")
    except ValueError:
        raise _Refused("the form cannot be read: too many fields, or text that is not UTF-8", 400) from None
    return {name: value.replace("\r\n", "\n") for name, value in pairs}  # browsers send CRLF


def _back(fields: Fields, said: str, of: str | None = None) -> Response:
    """Redirect to the form's page, with what was done and to what."""
    path, _, query = _place(fields).partition("?")
    kept = [pair for pair in parse_qsl(query, keep_blank_values=True) if pair[0] not in ("said", "of")]
    message = [("said", said), *([("of", of)] if of else [])]
    return RedirectResponse(f"{path}?{urlencode([*kept, *message])}", 303)


def _place(fields: Fields) -> str:
    """Return the form's page if it is a path of ours, else home."""
    given = fields.get("next", "")
    if not given.startswith("/") or given.startswith("//") or "\\" in given or not given.isprintable():
        return "/"
    parts = urlsplit(given)
    return given.partition("#")[0] if not parts.scheme and not parts.netloc else "/"
