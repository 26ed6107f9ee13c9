"""A `Control` with things in it that a real system has seldom at the same time; it remembers what it was told to do.

Pages are tried against it, with text as bad as tools may print it, and pictures are taken of it by hand:
`python -m tests.serve.fake_control` serves it.
"""

import time
from collections import Counter
from typing import Any

HOSTILE = "<script>alert(1)</script>\x1b[31mred\x1b]0;title\x07 \u202egnp.exe \x9b1m"
UID = "0123456789abcdef0123456789abcdef"
AGENT = f"main/reviewer@{UID}"


def fact(id: str, state: str = "running", **more: Any) -> dict[str, Any]:
    """Facts of a handle, as `control/handle_json.py` has them."""
    now = time.time()
    stopped = state == "stopped"
    return {
        "id": id,
        "uid": f"{abs(hash(id)):032x}"[:32],
        "tool": "build",
        "kind": "tool",
        "conversation": "main",
        "turn": "t1",
        "stateful": True,
        "state": state,
        "parked": False,
        "suspended": False,
        "owner": None if stopped else "alive",
        "kept": None,
        "attempt": 1,
        "next_attempt_at": None,
        "priority": 0,
        "created": now - 200,
        "started": None if state == "pending" else now - 190,
        "stopped": now - 45 if stopped else None,
        "deadline": None,
        "ok": True if stopped else None,
        "ended_by": "self" if stopped else None,
        "code": None,
        "message": None,
        "progress": None,
        "question": None,
        "held_up": [],
        "here": not stopped,
        "terminal": False,
        "last_line": None,
        "output_bytes": 1234,
        "lingering": False,
        "driver": None,
        "reading": False,
    } | more


def question(text: str, answer_type: Any = "Text", **more: Any) -> dict[str, Any]:
    """A question, as `control/handle_json.py` has it."""
    return {
        "id": "q",
        "text": text,
        "pre_amble": None,
        "answer_type": answer_type,
        "default": None,
        "secret": False,
    } | more


def need(id: str, kind: str, tool: str, **more: Any) -> dict[str, Any]:
    """What waits for a person, as `control/open_requests.py` has it."""
    return {
        "id": id,
        "kind": kind,
        "conversation": "main",
        "tool": tool,
        "handle": None,
        "handle_id": None,
        "since": time.time() - 75,
        "action": None,
        "arguments": None,
        "result": None,
        "is_error": None,
        "question": None,
        "may_remember": False,
        "until": None,
        "digest": None,
        "edit": False,
        "problem": None,
    } | more


def all_needs() -> list[dict[str, Any]]:
    """One of each kind."""
    arguments = {"target": "production", "services": ["api", "worker"], "force": False}
    options = {"Select": {"options": ["Keep both", "Overwrite", "Abort the merge"]}}
    text = question("Which release notes should go out with it?", default="The same as last time")
    return [
        need(
            "n-1", "permission", "deploy", action="spawn", arguments=arguments, may_remember=True, handle_id="deploy-7"
        ),
        need(
            "n-2",
            "question",
            "migrate",
            handle=UID,
            handle_id="migrate",
            may_remember=True,
            question=question(
                "Drop the column `legacy_id`?", "Boolean", pre_amble="412 rows still have a value there."
            ),
        ),
        need(
            "n-3",
            "question",
            "merge",
            question=question("README.md differs on both sides.", options, default="Keep both"),
        ),
        need("n-4", "question", "release", question=text, problem="the answer must be a string"),
        need("n-5", "secret", "ssh", question=question("Password for build@ci-4:", secret=True), conversation=AGENT),
        need("n-6", "result", "query", result="id | name\n 1 | Ada\n 2 | Grace", is_error=False),
    ]


def all_handles() -> list[dict[str, Any]]:
    """Handles in every state, the newest first."""
    now = time.time()
    gone = {"ok": False, "message": "exit code 2: 3 tests failed, 214 passed", "code": "command_failed"}
    return [
        fact(
            "build-web",
            last_line="[412/980] compiling src/routes/index.ts",
            progress={"done": 412, "total": 980, "message": "compiling"},
        ),
        fact("build-api", last_line="   Compiling tokio v1.38.0", tool="cargo"),
        fact("shell", last_line="$ tail -f /var/log/syslog", tool="bash", terminal=True, driver="person"),
        fact(
            "approve-42",
            parked=True,
            owner=None,
            tool="approval",
            kind="hook",
            deadline=now + 5400,
            conversation="billing",
        ),
        fact("migrate", "waiting", tool="migrate", question=question("Drop the column `legacy_id`?", "Boolean")),
        fact("queued", "pending", tool="deploy", created=now - 12),
        fact("retry-me", tool="fetch", attempt=3, next_attempt_at=now + 20, conversation=AGENT, kind="agent"),
        fact("evil", tool="cat", last_line=HOSTILE),
        fact("tests", "stopped", tool="pytest", **gone),
        fact("lint", "stopped", stopped=now - 80),
        fact("old", "stopped", ok=False, ended_by="abort", message="aborted by a person", stopped=now - 340),
        fact("slow", "stopped", ok=False, ended_by="timeout", message="ran longer than 60 s", stopped=now - 900),
    ]


class FakeControl:
    """Answers as `Control` does. `done` is what it was asked to do."""

    def __init__(self, *, empty: bool = False) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.asked: list[dict[str, Any]] = []
        self.open = [] if empty else all_needs()
        self.listed = [] if empty else all_handles()
        self.problem: str | None = None
        self.refusal: Exception | None = None

    @property
    def store_view(self) -> "FakeControl":
        return self

    store = runtime_view = requests = store_view

    async def ended(self, since: float) -> dict[tuple[str, str, str], int]:
        over = (fact for fact in self.listed if fact["state"] == "stopped" and fact["stopped"] >= since)
        return Counter((fact["tool"], "completed" if fact["ok"] else "failed", fact["ended_by"]) for fact in over)

    async def page(self, *, handle: str | None = None, limit: int = 200) -> list[dict[str, Any]]:
        return [need for need in self.open if handle in (None, need["handle"])][:limit]

    async def get(self, id: str) -> dict[str, Any] | None:
        return next((need for need in self.open if need["id"] == id), None)

    async def count(self) -> int:
        return len(self.open)

    async def permissions(self) -> list[dict[str, Any]]:
        """One of each kind."""
        base = {"conversation": "main", "tool": HOSTILE, "by": "the dashboard", "at": time.time() - 60}
        allowed = {
            "kind": "permission",
            "question": None,
            "value": True,
            "until": "revoked",
            "arguments": {"a": HOSTILE},
        }
        answered = {"kind": "answer", "question": HOSTILE, "value": False, "until": "turn", "arguments": None}
        return [] if not self.listed else [{"id": "p-1", **base, **allowed}, {"id": "p-2", **base, **answered}]

    async def revoke_permission(self, id: str) -> dict[str, Any]:
        self.done.append(("revoke_permission", id))
        return {"revoked": id == "p-1"}

    async def decide(self, id: str, decision: dict[str, Any], by: str | None = None) -> dict[str, Any]:
        self.done.append(("decide", id, decision))
        if self.problem is not None:
            return {"status": "again", "problem": self.problem}
        self.open = [need for need in self.open if need["id"] != id]
        return {"status": "taken", "problem": None}

    async def handles(self, **asked: Any) -> dict[str, Any]:
        self.asked.append(asked)
        state, limit = asked.get("state"), asked.get("limit", 50)
        found = [
            fact
            for fact in self.listed
            if state in (None, fact["state"]) or (state == "live" and fact["state"] != "stopped")
        ]
        return {"handles": found[:limit], "next": found[limit - 1]["uid"] if len(found) > limit else None}

    async def handle(self, ref: str, conversation: str | None = None) -> dict[str, Any]:
        return next(fact for fact in self.listed if fact["uid"] == ref)

    async def output(self, uid: str, **asked: Any) -> dict[str, Any]:
        return {"text": "all of it\nthe last line\n\n"}

    async def apply(self, uid: str, input: Any = None, keys: Any = ()) -> dict[str, Any]:
        if self.refusal is not None:
            raise self.refusal
        self.done.append(("apply", uid, input))
        return {}

    async def abort(self, uid: str, by: str = "a person") -> dict[str, Any]:
        self.done.append(("abort", uid))
        return {}

    async def revoke(self, conversation: str) -> dict[str, Any]:
        self.done.append(("revoke", conversation))
        return {"revoked": 2}

    async def conversations(self, *, after: str | None = None, limit: int = 50) -> dict[str, Any]:
        now = time.time()
        rows = [
            ("billing", 12, 1, now - 4000, "Invoices of March", False, None),
            ("main", 341, 6, now - 3, "Release 2.4", True, None),
            (AGENT, 7, 1, now - 9, None, True, "main"),
            (f"{AGENT}/searcher@{UID}", 2, 0, now - 60, None, False, AGENT),
            ("scratch", 1, 0, now - 90000, None, False, None),
        ]
        names = ("id", "handles", "live", "updated", "title", "turn_open", "parent")
        return {"conversations": [dict(zip(names, row, strict=True)) for row in rows if self.listed], "next": None}

    async def keys(self, conversation: str | None = None, after: str | None = None, limit: int = 50) -> dict[str, Any]:
        if not self.listed:
            return {"keys": [], "next": None}
        rows: list[dict[str, Any]] = [
            {
                "key_id": "k_7f3a9c",
                "kind": "completion",
                "name": "",
                "conversation": "billing",
                "uid": UID,
                "id": "approve-42",
                "deadline": time.time() + 5400,
            },
            {
                "key_id": "k_11c0de",
                "kind": "event",
                "name": "paid",
                "conversation": "billing",
                "uid": UID,
                "id": "invoice",
                "deadline": None,
            },
            {
                "key_id": "k_90ab12",
                "kind": "completion",
                "name": "",
                "conversation": "main",
                "uid": UID,
                "id": "hook-1",
                "deadline": None,
            },
        ]
        return {"keys": [row for row in rows if conversation in (None, row["conversation"])], "next": None}

    async def count_open_waits(self, conversations: list[str]) -> dict[str, int]:
        return {"billing": 1200, "main": 1}

    async def notifications(self, **asked: Any) -> dict[str, Any]:
        now = time.time()
        self.asked.append(asked)
        if not self.listed:
            return {"queued": [], "history": [], "next": None}
        news = {"number": 9, "kind": "tool.failed", "level": "error", "message": "`tests` failed: 3 tests failed"}
        queued = news | {"conversation": "main", "at": now - 40, "uid": UID, "carriers": ["response"]}
        told = [
            ("notification.queued", news, now - 40),
            (
                "notification.delivered",
                news
                | {
                    "number": 8,
                    "kind": "tool.stopped",
                    "level": "info",
                    "message": "`lint` has stopped",
                    "carrier": "response",
                },
                now - 70,
            ),
            (
                "notification.removed",
                news
                | {"number": 7, "kind": "tool.waiting", "level": "warning", "message": "`migrate` asks", "by": "shown"},
                now - 90,
            ),
        ]
        history = [
            {"seq": 900 - n, "at": at, "type": type, "conversation": "main", "uid": UID, "data": data}
            for n, (type, data, at) in enumerate(told)
        ]
        return {"queued": [queued], "history": history, "next": None}

    async def stats(self) -> dict[str, Any]:
        return {
            "handles": {"pending": 1, "running": 18, "waiting": 1, "stopped": 99_321, "parked": 12},
            "server": {
                "started": time.time() - 86_000,
                "calls": 18_442,
                "bytes_produced": 48_200_000,
                "bytes_shown": 1_930_000,
                "waits": 902,
                "wait_seconds": {"p50": 4.2, "p99": 340.0},
                "wakeup_ms": {"p50": 0.8, "p99": 7.4},
                "commits": 55_120,
                "streams": 3,
            },
            "store": {
                "path": "work.db",
                "bytes": 88_000_000,
                "last_event": 240_113,
                "disk": {"used": 3 << 30, "files": 2 << 30, "limit": 10 << 30},
                "first_event": 1,
            },
        }

    async def tools(self) -> list[dict[str, Any]]:
        if not self.listed:
            return []
        build = {
            "required": ["action", "id", "target"],
            "properties": {
                "action": {"const": "spawn"},
                "id": {"type": "string"},
                "target": {"type": "string", "description": "What to build."},
                "profile": {"enum": ["debug", "release"]},
                "features": {"type": "array", "items": {"type": "string"}},
            },
        }
        spawns = ["spawn", "fetch", "apply", "abort"]
        rows: list[dict[str, Any]] = [
            {
                "name": "build",
                "source": "command",
                "builtin": False,
                "description": "Build a target of the workspace.",
                "actions": spawns,
                "parameters": {"type": "object", "oneOf": [build]},
                "run": "ask",
            },
            {
                "name": "bash",
                "source": "terminal",
                "builtin": False,
                "description": "A shell in a terminal.",
                "actions": spawns,
                "parameters": {"type": "object", "oneOf": [{"properties": {"action": {}, "id": {}}}]},
                "run": "edit",
            },
            {
                "name": "await",
                "source": "builtin",
                "builtin": True,
                "description": "Wait until handles have stopped, or need something.",
                "actions": [],
                "parameters": {"properties": {"all": {}, "any": True, "timeout": {"type": "number"}}},
                "run": "unattended",
            },
        ]
        return rows


class NoScreens:
    """Nothing has a terminal."""

    def routes(self) -> list[Any]:
        return []


def main() -> None:
    """Serve the pages, to be looked at."""
    import uvicorn
    from starlette.applications import Starlette

    from keephold.serve.dashboard.pages import routes
    from keephold.serve.sessions import Sessions

    control: Any = FakeControl()
    screens: Any = NoScreens()
    uvicorn.run(Starlette(routes=routes(control, screens, Sessions("token"))), port=8799)


if __name__ == "__main__":
    main()
