"""A day of three agents on one store, with the dashboard to look at. Run it: `python examples/three_agents.py`.

First `pip install '.[serve]'` in a clone: the program starts `keephold serve`.

The coder's tests fail once, and its release needs a permission. The researcher reads pages of a busy server, and asks
which limit counts. Operations waits for a certificate that comes from outside, and aborts a slow backup. An hour is
half a second. The program prints the address of the dashboard, plays the person, and lists the calls of the day.

With `--me` you are the person: decide under "Needs you", look around, and press Enter at the end. The models are
scripts. To use a provider, replace `model.converse(rt, task, conversation=name)` by
`rt.conversation(name, model="openai:gpt-5").prompt(task)`.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import httpx2

import keephold
from keephold.policies import RetryPolicy
from keephold.testing import Says, ScriptedModel

HOUR = 0.5
SPAWNED: Sequence[Literal["spawn", "fetch", "abort"]] = ("spawn", "fetch", "abort")
ordered: asyncio.Queue[keephold.Key] = asyncio.Queue()
"""The way a key reaches the certificate authority."""


@keephold.tool(actions=SPAWNED)
async def tests(call: keephold.Call, commit: str) -> str:
    """Run the tests."""
    call.emit(f"{commit}: test_login … test_cart …\n")
    await asyncio.sleep(HOUR)
    if commit == "a1":
        raise keephold.ToolError("test_cart failed: expected 3 items, got 2")
    return "42 passed"


@keephold.tool(run="ask")
async def release(version: str) -> str:
    """Publish a version. The user has to allow it."""
    return f"{version} is published"


@keephold.tool(actions=SPAWNED, retry=RetryPolicy(policy="safe"))
async def read_page(call: keephold.Call, url: str) -> str:
    """Read a page. A busy server is asked three times."""
    await asyncio.sleep(HOUR / 5)
    if call.attempt == 1 or url.endswith("/archive"):
        raise keephold.ToolError(f"{url}: 503, the server is busy", transient=True)
    return "The limit is 100, or 250 since May."


@keephold.tool(actions=SPAWNED)
async def certificate(call: keephold.Call, host: str) -> keephold.Pending:
    """Order a certificate. The authority sends it when it is ready."""
    ordered.put_nowait(await call.completion_key())
    return keephold.Pending(deadline=86_400)


@keephold.tool(actions=SPAWNED)
async def backup(call: keephold.Call) -> None:
    """Copy everything."""
    for percent in range(100):
        call.progress(percent, 100, "copying")
        await asyncio.sleep(10 * HOUR)


def agents() -> dict[str, tuple[str, ScriptedModel]]:
    """Return each agent's task and model."""
    pages = [("read_page", {"spawn": page, "url": f"https://docs.example/{page}"}) for page in ("limits", "archive")]
    question = {"question": "Which limit counts?", "answer_type": "select", "options": ["100", "250"]}
    begun = [("certificate", {"spawn": "cert", "host": "example.org"}), ("backup", {"spawn": "nightly"})]
    return {
        "coder": ("Release 1.4.", ScriptedModel([
            Says("I run the tests.", [("tests", {"spawn": "red", "commit": "a1"}), ("await", {"all": ["red"]})]),
            Says("I mend the cart.", [("tests", {"spawn": "green", "commit": "b2"}), ("await", {"all": ["green"]})]),
            Says("All pass.", [("release", {"version": "1.4"})]),
            lambda heard: f"{heard.text}.",
        ])),
        "researcher": ("Which limit applies?", ScriptedModel([
            Says("I read both.", [*pages, ("await", {"all": ["limits", "archive"]})]),
            Says("One page has two limits, and the other cannot be read.", [("ask_user", question)]),
            lambda heard: f"The limit is {heard.text}.",
        ])),
        "operations": ("Renew the certificate.", ScriptedModel([
            Says("I start both.", [*begun, ("await", {"any": ["cert", "nightly"]})]),
            Says("The backup is too slow.", [("handle_abort", {"id": "nightly"})]),
            "The certificate is there. The backup is not.",
        ])),
    }  # fmt: skip


async def authority(http: httpx2.AsyncClient) -> None:
    """Send the certificate hours later, by webhook."""
    key = await ordered.get()
    await asyncio.sleep(3 * HOUR)
    sent = await http.post(f"/complete/{key}", json={"status": "ok", "payload": "CERTIFICATE"})
    print(f"authority: {sent.json()['status']}")


async def person(http: httpx2.AsyncClient, evening: asyncio.Event) -> None:
    """Decide everything that the agents ask, as a person does on the dashboard."""
    while not evening.is_set():
        for asked in (await http.get("/api/requests")).json():
            answer = {"decision": "answer", "value": "250"} if asked["kind"] == "question" else {"decision": "approve"}
            decided = await http.post(f"/api/requests/{asked['id']}", json=answer)
            if decided.is_success and decided.json()["status"] == "taken":
                print(f"person: {asked['conversation']}, {asked['tool']}: {answer}")
        await asyncio.sleep(0.1)


async def elsewhere(prompt: Any) -> keephold.prompts.Dismissed:
    """Leave every prompt to the dashboard: it is in the store, and a decision made there cancels this."""
    await asyncio.Event().wait()
    return keephold.prompts.Dismissed()


async def day(url: str, token: str, store: str) -> None:
    tools = [tests, release, read_page, certificate, backup]
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(base_url=url, headers=headers) as http,
        keephold.Runtime(tools, store=store, prompter=elsewhere) as rt,
    ):
        working, evening = agents(), asyncio.Event()
        async with asyncio.TaskGroup() as others:
            others.create_task(authority(http))
            if "--me" not in sys.argv:
                others.create_task(person(http, evening))
            turns = [model.converse(rt, task, conversation=name) for name, (task, model) in working.items()]
            await asyncio.gather(*turns)
            evening.set()
        for name, (_, model) in working.items():
            print(f"{name}: {model.said[-1].text}")
            for each in await rt.handles(conversation=name):
                print(f"  {each.id} ({each.tool}), attempt {each.attempt}: {getattr(each.outcome, 'message', 'ok')}")


def address_of(server: subprocess.Popen[str]) -> str:
    """Return the address that the server prints. If it ends instead, show what it said, and end, too."""
    assert server.stderr is not None
    for line in server.stderr:
        if line.startswith("keephold at "):
            return line.split()[2]
        print(line, end="", file=sys.stderr)
    sys.exit("the server has ended")


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the dashboard ends, too
    with tempfile.TemporaryDirectory() as directory:
        store = f"sqlite:///{directory}/day.db"
        command = [sys.executable, "-m", "keephold", "serve", "--quiet", "--port", "0", "--store", store]
        with subprocess.Popen([*command, "--config", os.devnull], stderr=subprocess.PIPE, text=True) as server:
            try:
                url = address_of(server)
                token = Path(directory, "day.db-token").read_text().strip()
                print(f"dashboard: {url}?token={token}", flush=True)
                asyncio.run(day(url, token, store))
                if "--me" in sys.argv:
                    input("Press Enter to stop the dashboard. ")
            finally:
                server.terminate()


if __name__ == "__main__":
    main()
