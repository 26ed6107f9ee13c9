"""An approval by webhook, with a page for the approver. Run it: `python examples/approval_webhook.py`.

First `pip install '.[serve]'` in a clone: the program starts `keephold serve`.

An agent orders two things. The tool hands each order with its key to an approval service and returns, so the calls are
parked. A person reads the orders on the service's page and presses a button. The service posts the decision to
`/complete/<key>` of `keephold serve`. The key is the only credential of a call, and it works once. It stays in the
service: neither the page nor the page's address contains it. Put such a page behind your login.

The program plays the person. With `--me` it prints the address of the page and waits until you have decided.
To use a provider, replace `model.converse(rt, TASK)` by `rt.conversation(model="openai:gpt-5").prompt(TASK)`.
"""

import asyncio
import html
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs
from urllib.request import Request, urlopen

import keephold
from keephold.testing import Says, ScriptedModel

TASK = "Order a desk and a yacht."
orders: dict[str, dict[str, str]] = {}
"""The orders that wait for a decision. In a real program: a table of the service's database."""


# The tool


@keephold.tool(actions=("spawn", "fetch", "abort"))
async def purchase(call: keephold.Call, item: str, reason: str) -> keephold.Pending:
    """Buy something. A person has to approve it."""
    orders[secrets.token_hex(8)] = {"text": f"{item}\n\n{reason}", "key": await call.completion_key()}
    return keephold.Pending(deadline=86_400)


def post(url: str, body: str, origin: str = "") -> str:
    """POST, and return the status and the body of the reply."""
    try:
        with urlopen(Request(url, body.encode(), {"Origin": origin} if origin else {})) as reply:
            return f"{reply.status} {reply.read().decode()}"
    except HTTPError as reply:
        with reply:
            return f"{reply.code} {reply.read().decode()}"


# The approval service, which alone has the keys


class Approvals(BaseHTTPRequestHandler):
    """A page with the whole text of every order and two buttons for each."""

    page, complete = "", ""  # the addresses of the page, and of the server for decisions

    def do_GET(self) -> None:
        buttons = "<button name=decision value=ok>Approve</button> <button name=decision value=err>Deny</button>"
        cards = [
            f"<pre>{html.escape(order['text'])}</pre><form method=post action=/{id}>{buttons}</form>"
            for id, order in list(orders.items())
        ]
        self.reply(200, f"<h1>Approvals</h1>{''.join(cards) or 'Nothing to decide.'}")

    def do_POST(self) -> None:
        order = orders.get(self.path[1:])
        if order is None or f"{self.headers['Origin']}/" != self.page:  # another site must not press a button
            self.reply(403, "This form is not from this page.")
            return
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        [decision], refusal = form["decision"], {"code": "refused", "message": "The approver said no."}
        body = {"status": decision, "payload": {"approved": True} if decision == "ok" else refusal}
        said = post(self.complete + order["key"], json.dumps(body))
        print(f"  service: {order['text'].splitlines()[0]}: {decision}, {said}")
        if said[:3] in ("200", "409"):  # decided, now or before; otherwise the order stays on the page
            orders.pop(self.path[1:], None)
        self.reply(200, f"<p>{html.escape(said)}</p><a href=/>All approvals</a>")

    def reply(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("X-Frame-Options", "DENY")  # another site must not hide the buttons under its own
        self.end_headers()
        self.wfile.write(f"<!doctype html><title>Approvals</title>{body}".encode())

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


# The person, and the demonstration


async def person(page: str) -> None:
    """Read the page, approve the desk and deny the yacht; another site tries to approve the yacht."""
    shown = ""
    while shown.count("<form") < 2:
        await asyncio.sleep(0.1)
        shown = (await asyncio.to_thread(urlopen, page)).read().decode()
    assert not any(order["key"] in shown for order in orders.values())
    assert "<b>" not in shown  # the text of an order is shown as it is
    form = dict(re.findall(r"<pre>a (\w+).*?action=/(\w+)", shown, re.DOTALL))
    forged = await asyncio.to_thread(post, page + form["yacht"], "decision=ok", "http://evil.example")
    print(f"  other site: yacht: ok, {forged[:3]}")
    for item, decision in (("desk", "ok"), ("yacht", "err")):
        await asyncio.to_thread(post, page + form[item], f"decision={decision}", page.rstrip("/"))


async def agent(page: str, store: str) -> None:
    desk = {"spawn": "desk", "item": "a desk, 420 €", "reason": "Ada's is broken."}
    yacht = {"spawn": "yacht", "item": "a yacht, 9,000,000 €", "reason": "Bob <b>needs</b> it."}
    waiting = ("await", {"all": ["desk", "yacht"]})
    model = ScriptedModel([Says(calls=[("purchase", desk), ("purchase", yacht), waiting]), "Done."])
    print(f"  the page is at {page}", flush=True)
    async with keephold.Runtime([purchase], store=store) as rt, asyncio.TaskGroup() as tasks:
        tasks.create_task(model.converse(rt, TASK))
        if "--me" not in sys.argv:
            tasks.create_task(person(page))
    print(f"  agent: {model.seen[-1].responses[-1].result}")


def address_of(server: subprocess.Popen[str]) -> str:
    """Return the address that the server prints. If it ends instead, show what it said, and end, too."""
    assert server.stderr is not None
    for line in server.stderr:
        if line.startswith("keephold at "):
            return line.split()[2]
        print(line, end="", file=sys.stderr)
    sys.exit("the server has ended")


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server ends, too
    with tempfile.TemporaryDirectory() as directory:
        store = f"sqlite:///{directory}/work.db"
        command = [sys.executable, "-m", "keephold", "serve", "--quiet", "--port", "0", "--store", store]
        with (
            ThreadingHTTPServer(("127.0.0.1", 0), Approvals) as service,
            subprocess.Popen([*command, "--config", os.devnull], stderr=subprocess.PIPE, text=True) as server,
        ):
            try:
                Approvals.page = f"http://127.0.0.1:{service.server_port}/"
                Approvals.complete = f"{address_of(server)}complete/"
                Thread(target=service.serve_forever, daemon=True).start()
                asyncio.run(agent(Approvals.page, store))
                service.shutdown()
            finally:
                server.terminate()


if __name__ == "__main__":
    main()
