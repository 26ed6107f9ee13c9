"""The dashboard over a runtime, without a server, and its pages as somebody reads them who has no eyes for colours."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import httpx2
from starlette.applications import Starlette
from tests.patience import PATIENCE
from tests.turn.calls import STATEFUL
from tests.wait_tools import with_wait_tools

import keephold
from keephold import Runtime, Tool, Turn
from keephold.control.control import Control
from keephold.serve.dashboard.pages import routes
from keephold.serve.metrics import Prometheus
from keephold.serve.screens import Screens
from keephold.serve.sessions import Sessions
from keephold.turn.prompt_queue import FromList

_EMPTY = {"meta", "link", "input", "br", "hr", "img", "path", "circle", "rect"}


@keephold.tool(actions=STATEFUL)
async def quick() -> str:
    """Be done at once."""
    return "done"


@keephold.tool(actions=STATEFUL)
async def fails() -> str:
    """Fail at once."""
    raise keephold.ToolError("the disk is full")


@dataclass
class Element:
    """An element of a page."""

    tag: str
    attributes: dict[str, str]
    inside: list["Element"] = field(default_factory=list)
    text: str = ""


class Page(HTMLParser):
    """A page, flattened: its elements in order, each with the text that is in it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(html)
        self.close()
        assert not self._open, f"never closed: {[element.tag for element in self._open]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice: {names}"
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.elements.append(element)
        for outer in self._open:
            outer.inside.append(element)
        if tag not in _EMPTY:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        if tag in _EMPTY:
            return
        assert self._open and self._open[-1].tag == tag, f"</{tag}> ends {[element.tag for element in self._open]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def all(self, tag: str, **attributes: str) -> list[Element]:
        """The elements of a tag that have these attributes; a `_` stands for a `-`."""
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        return [each for each in self.elements if each.tag == tag and wanted.items() <= each.attributes.items()]

    def texts(self, tag: str, **attributes: str) -> list[str]:
        return [" ".join(each.text.split()) for each in self.all(tag, **attributes)]

    @property
    def title(self) -> str:
        return self.texts("title")[0]


@asynccontextmanager
async def browser(control: Any, screens: Any) -> AsyncIterator[httpx2.AsyncClient]:
    """Somebody who looks at the pages; forms lead them nowhere by themselves."""
    app = Starlette(routes=routes(control, screens, Sessions("token")))
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
        yield http


@dataclass(frozen=True)
class Dashboard:
    """A runtime with an open turn, and its dashboard."""

    runtime: Runtime
    turn: Turn
    control: Control
    http: httpx2.AsyncClient

    async def page(self, path: str) -> Page:
        answer = await self.http.get(path)
        assert answer.status_code == 200, answer.text
        return Page(answer.text)

    async def need(self, after: dict[str, Any] | None = None) -> dict[str, Any]:
        """What waits for a person, once something does; `after`: something else than this."""
        async with asyncio.timeout(PATIENCE):
            while True:  # a prompter tells nobody else when it is asked
                found = [
                    need for need in await self.control.requests.page() if after is None or need["id"] != after["id"]
                ]
                if found:
                    return found[0]
                await asyncio.sleep(0.005)

    async def answer(self, need: dict[str, Any], **fields: str) -> httpx2.Response:
        """Send the form of a need."""
        return await self.http.post(f"/do/requests/{need['id']}", data=fields)


@asynccontextmanager
async def dashboard(tools: Sequence[Tool] = (), **options: Any) -> AsyncIterator[Dashboard]:
    metrics = Prometheus()
    async with with_wait_tools(tools, prompter=FromList(), metrics=metrics, **options) as runtime:
        control, screens = Control(runtime, snapshot=metrics.snapshot), Screens(runtime)
        async with browser(control, screens) as http, runtime.turn("main") as turn:
            yield Dashboard(runtime, turn, control, http)
        await screens.close()
