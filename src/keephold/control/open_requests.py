"""Open requests to the user, and standing permissions, of this process and of others, as JSON (P6).

A prompt of this process is in `turn/approvals.py`. Another process posts its prompts for permission and of results, and
its standing permissions, in the store. A question is the state of its handle. Nothing of a dead process is listed.
"""

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import asdict, replace

from keephold.control.handle_json import OpenQuestion, Seconds, Shape, as_json, open_question
from keephold.control.store_view import PAGE
from keephold.durable.keys import masked
from keephold.errors import KeepholdError
from keephold.handles.question import question_request, requested_question
from keephold.handles.state import Waiting
from keephold.store.base import HandleQuery, Post, PostKind, Record, Store, browsable
from keephold.turn.prompts import AskQuestion, DeliverResult, Prompt, RunTool, StandingPermission, digest

if TYPE_CHECKING:
    from keephold.runtime import Runtime


class OpenRequest(Shape, kw_only=True):
    """An open request; fields that do not concern its kind are null or false.

    `until` says how long a remembered decision lasts: until the turn ends, or until it is revoked or the process ends.
    `digest` identifies what is asked: send it with the decision, and a decision about anything else is refused.
    """

    id: str
    kind: Literal["permission", "question", "result", "secret"]
    conversation: str
    tool: str
    handle: str | None
    handle_id: str | None
    since: Seconds
    action: str | None = None
    arguments: dict[str, Any] | None = None
    result: str | None = None
    is_error: bool | None = None
    question: OpenQuestion | None = None
    may_remember: bool = False
    until: Literal["turn", "revoked", None] = None
    digest: str | None = None
    edit: bool = False
    problem: str | None = None


def described(id: str, prompt: Prompt, since: float) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    match prompt:
        case RunTool():
            fields = {
                "kind": "permission",
                "action": prompt.action,
                "arguments": masked(prompt.arguments),
                "edit": prompt.edit,
                "may_remember": True,
                "until": prompt.until,
                "digest": prompt.digest,
                "problem": prompt.problem,
            }
        case DeliverResult():
            fields = {
                "kind": "result",
                "result": masked(prompt.result),
                "is_error": prompt.is_error,
                "edit": prompt.edit,
                "digest": prompt.digest,
            }
        case AskQuestion():
            fields = {
                "kind": "secret" if prompt.question.secret else "question",
                "question": open_question(prompt.question),
                "may_remember": prompt.may_remember,
                "until": prompt.until if prompt.may_remember else None,
                "problem": prompt.problem,
            }
    request = OpenRequest(
        id=id,
        conversation=prompt.conversation,
        tool=prompt.tool,
        handle=prompt.uid,
        handle_id=prompt.id,
        since=since,
        **fields,
    )
    return as_json(request)


class ListedPermission(Shape):
    """A standing permission, or a standing answer to a question: a decision that holds for later calls, too.

    It holds for one tool in one conversation: until the turn ends, or until it is revoked or the process ends.
    `arguments` are those of the call about which the user was asked.
    """

    id: str
    kind: Literal["permission", "answer"]
    conversation: str
    tool: str
    question: str | None
    value: Any
    by: str
    at: Seconds
    until: Literal["turn", "revoked"]
    arguments: dict[str, Any] | None


def permission_json(permission: StandingPermission) -> dict[str, Any]:
    """Describe a standing permission."""
    kind: Literal["permission", "answer"] = "permission" if permission.question is None else "answer"
    hidden = {"value": masked(permission.value), "arguments": masked(permission.arguments)}
    return as_json(ListedPermission(kind=kind, **asdict(permission) | hidden))


def still_open(id: str, request: dict[str, Any] | None) -> dict[str, Any]:
    """Return the request of that id. Raises `KeepholdError` if it is not open any more."""
    if request is None:
        raise KeepholdError(
            f"request `{id}` is not open: it was decided, or its call has stopped. `keephold requests` lists the "
            "open ones",
            code="request_gone",
        )
    return request


class PostedRequests:
    """The requests and standing permissions of other processes."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def posts(self, kind: PostKind) -> list[Post]:
        """Return the posts of other live processes, oldest first."""
        store = self._store
        return [post for post in await store.posts(kind) if post.owner != store.owner and store.alive(post.owner)]

    async def permissions(self) -> list[dict[str, Any]]:
        """List the standing permissions, oldest first."""
        posts = await self.posts("standing")
        return [permission_json(msgspec.json.decode(post.body, type=StandingPermission)) for post in posts]

    async def page(self, *, handle: str | None = None, limit: int = PAGE) -> list[dict[str, Any]]:
        """List the oldest requests; with `handle`, those that concern the handle of that uid."""
        prompts = [_of_post(post) for post in await self.posts("prompt")]
        if handle is None:
            asking = [_of_record(record) for record in await self._asking(limit)]
        else:
            prompts = [each for each in prompts if each["handle"] == handle]
            asked = await self._asked(handle)
            asking = [] if asked is None else [asked]
        return sorted(prompts + asking, key=lambda request: request["since"])[:limit]

    async def get(self, id: str) -> dict[str, Any] | None:
        """Return one request; None if it is not open any more."""
        elsewhere = requested_question(id)
        if elsewhere is None:
            return next((_of_post(post) for post in await self.posts("prompt") if post.id == id), None)
        request = await self._asked(elsewhere[0])
        return request if request is not None and request["id"] == id else None

    async def count(self) -> int:
        return len(await self.posts("prompt")) + sum((await self._others()).values())

    async def _others(self) -> dict[str, int]:
        """Count the open questions of each other live process."""
        store = self._store
        asking = await browsable(store).asking()
        return {each: count for each, count in asking.items() if each != store.owner and store.alive(each)}

    async def _asking(self, most: int) -> list[Record]:
        """Return the oldest handles of other processes that have an open question."""
        others, after = await self._others(), None
        found: list[Record] = []
        while len(found) < min(most, sum(others.values())):
            page = await self._store.handles(HandleQuery(state="waiting", stateful=None, after=after, limit=PAGE))
            if not page:
                break
            found += [each for each in page if each.owner in others]
            after = page[-1].uid
            await asyncio.sleep(0)  # reading the store does not yield to the loop
        return found[:most]

    async def _asked(self, uid: str) -> dict[str, Any] | None:
        record = await self._store.handle(uid)
        if record is None or not isinstance(record.state, Waiting) or record.owner in (None, self._store.owner):
            return None
        return _of_record(record) if self._store.alive(str(record.owner)) else None


class OpenRequests:
    """All open requests: those of this process, and those of others."""

    def __init__(self, runtime: "Runtime") -> None:
        self._open = runtime.approvals.open
        self.elsewhere = PostedRequests(runtime.registry.store)

    async def page(self, *, handle: str | None = None, limit: int = PAGE) -> list[dict[str, Any]]:
        """List the oldest requests; with `handle`, those that concern the handle of that uid."""
        size = max(1, min(limit, PAGE))
        here = (id for id, asking in self._open.items() if handle in (None, asking.prompt.uid))
        listed = [self._described(id) for id in islice(here, size)]
        listed += await self.elsewhere.page(handle=handle, limit=size)
        return sorted(listed, key=lambda request: request["since"])[:size]

    async def get(self, id: str) -> dict[str, Any] | None:
        """Return one request; None if it is not open any more."""
        return self._described(id) if id in self._open else await self.elsewhere.get(id)

    def _described(self, id: str) -> dict[str, Any]:
        return described(id, self._open[id].prompt, self._open[id].since)

    async def count(self) -> int:
        return len(self._open) + await self.elsewhere.count()


def _of_post(post: Post) -> dict[str, Any]:
    prompt: RunTool | DeliverResult = msgspec.json.decode(post.body, type=RunTool | DeliverResult)
    # Of what is shown, so that a row that somebody has changed is not approved as what its process asks (P5).
    shown = prompt.arguments if isinstance(prompt, RunTool) else {"result": prompt.result}
    action = prompt.action if isinstance(prompt, RunTool) else None
    prompt = replace(prompt, digest=digest(prompt.tool, action, prompt.id, shown))
    return described(post.id, prompt, post.at)


def _of_record(record: Record) -> dict[str, Any]:
    state = record.state
    assert isinstance(state, Waiting)
    request = OpenRequest(
        id=question_request(record.uid, state.number),
        kind="secret" if state.question.secret else "question",
        conversation=record.conversation,
        tool=record.tool,
        handle=record.uid,
        handle_id=record.id if record.stateful else None,
        since=state.asked,
        question=open_question(state.question, state.number),
    )
    return as_json(request)
