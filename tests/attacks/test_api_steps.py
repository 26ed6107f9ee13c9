"""`api` steps of workflows, which models write: which hosts and addresses they reach (K10).

The only "public" address here is 127.0.0.2, where servers of the tests listen; 127.0.0.1 must not be reached. Names are
resolved by `socket.getaddrinfo`, which is replaced: the code under test resolves and connects by nothing else.
"""

import asyncio
import datetime
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.patience import until
from tests.turn.people import Person
from tests.unit.waiting.calls import Caller
from tests.unit.workflow.test_api import echo, server
from tests.wait_tools import with_wait_tools

from keephold import ConfigError, ToolError
from keephold.config import Config, load_config
from keephold.config.model import WorkflowSettings
from keephold.testing import VirtualClock
from keephold.tools.workflow.http import Http
from keephold.turn.prompts import Answer, AskQuestion

OUTSIDE, INSIDE = "127.0.0.2", "127.0.0.1"


@pytest.fixture(autouse=True)
def _public(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keephold.tools.workflow.pinned.is_public", lambda address: str(address) == OUTSIDE)


class Dns:
    """Answers each name with its answers, one after the other; the last one stays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **answers: list[list[str]]) -> None:
        self.asked: list[str] = []
        self._answers = {f"{name}.test": list(each) for name, each in answers.items()}
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self._resolve)

    def _resolve(self, host: Any, port: Any, *rest: Any, **named: Any) -> Any:
        host = host.decode() if isinstance(host, bytes) else host
        if host not in self._answers:
            return self._real(host, port, *rest, **named)
        self.asked.append(host)
        answers = self._answers[host]
        addresses = answers.pop(0) if len(answers) > 1 else answers[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port or 0)) for each in addresses]


Said = tuple[int, dict[str, str], bytes]


@asynccontextmanager
async def both(outside: Callable[..., Said], tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[int, list[str]]]:
    """A public server and an internal one on the same port; gives the port and the paths that the internal one saw."""
    seen: list[str] = []

    def secret(method: str, path: str, headers: dict[str, str], body: bytes) -> Said:
        seen.append(path)
        return 200, {}, b"internal page"

    async with server(secret) as internal:
        port = int(internal.rpartition(":")[2])
        async with server(outside, OUTSIDE, port, tls):
            yield port, seen


def page(*_: Any) -> Said:
    return 200, {}, b"public page"


async def sent(http: Http, url: str, **more: Any) -> str:
    """The body of the answer, or the error."""
    given: dict[str, Any] = {"method": "GET", "url": url, "headers": {}, **more}
    try:
        return str((await http.request(given, "a", 30))["body"])
    except ToolError as error:
        return error.message
    finally:
        await http.close()


async def test_K10_dns_rebinding_reaches_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is public when it is checked and internal when it is connected to returned an internal page."""
    trap: list[str] = []

    def proxy(method: str, path: str, headers: dict[str, str], body: bytes) -> Said:
        trap.append(path)
        return 200, {}, b"by a proxy, which resolves the name itself"

    async with both(page) as (port, seen), server(proxy) as through:
        monkeypatch.setenv("HTTP_PROXY", through)
        monkeypatch.setenv("ALL_PROXY", through)
        dns = Dns(monkeypatch, rebinds=[[OUTSIDE], [INSIDE]], inside=[[INSIDE]], mixed=[[OUTSIDE, INSIDE]])
        assert await sent(Http(hosts=[f"*:{port}"]), f"http://rebinds.test:{port}/") == "public page"
        assert dns.asked == ["rebinds.test"]
        for name in ("rebinds", "inside", "mixed"):
            refused = await sent(Http(hosts=[f"*:{port}"]), f"http://{name}.test:{port}/")
            assert f"`{name}.test` is at {INSIDE}, which is not a public address" in refused
    assert seen == trap == []


async def test_K10_each_redirect_is_checked_and_pinned_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(method: str, path: str, headers: dict[str, str], body: bytes) -> Said:
        if headers["host"].startswith("there"):
            return 200, {}, json.dumps([method, headers.get("x-key"), body.decode()]).encode()
        status, _, name = path.lstrip("/").partition("/")
        return int(status), {"location": f"http://{name}.test:{port}/x"}, b""

    async with both(away) as (port, seen):
        Dns(monkeypatch, a=[[OUTSIDE]], there=[[OUTSIDE], [INSIDE]], inside=[[INSIDE]], unlisted=[[OUTSIDE]])
        listed = [f"{name}.test:{port}" for name in ("a", "there", "inside")]
        key = {"X-Key": "k"}
        assert await sent(Http(hosts=listed), f"http://a.test:{port}/302/there", headers=key) == '["GET", null, ""]'
        assert "not a public address" in await sent(Http(hosts=listed), f"http://a.test:{port}/302/inside")
        assert "`unlisted.test" in await sent(Http(hosts=listed), f"http://a.test:{port}/302/unlisted")
        secret = await sent(Http(hosts=listed), f"http://a.test:{port}/307/there", method="POST", body="secret")
        assert "redirects its body to another host, which is not followed" in secret
    assert seen == []


async def test_K10_tls_verifies_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are made to addresses; a certificate must still be that of the name."""
    tls = certified(tmp_path, "good.test")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    async with both(page, tls) as (port, _):
        Dns(monkeypatch, good=[[OUTSIDE]], evil=[[OUTSIDE]])
        assert await sent(Http(hosts=[f"*:{port}"]), f"https://good.test:{port}/") == "public page"
        refused = await sent(Http(hosts=[f"*:{port}"]), f"https://evil.test:{port}/")
        assert "certificate" in refused.lower() and "evil.test" in refused
        await until(lambda: len(asyncio.all_tasks()) == 1)  # the server's own task for the refused connection


def certified(directory: Path, name: str) -> ssl.SSLContext:
    """A server's context with a certificate of its own for that name, which is written to the directory."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    kept = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (directory / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, *kept))
    (directory / "certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "certificate.pem", directory / "key.pem")
    return context


# Which hosts


@pytest.mark.parametrize(
    ("pattern", "fits", "others"),
    [
        ("api.example.com", ["https://api.example.com/", "http://API.example.com./x", "https://u:p@api.example.com"],
         ["https://api.example.com:8443", "http://api.example.com:443", "https://a.api.example.com",
          "https://api.example.com.evil.org", "https://api.example.com@evil.org", "https://evil.org/api.example.com"]),
        ("*.example.com:8443", ["https://a.example.com:8443", "http://a.b.example.com:8443"],
         ["https://example.com:8443", "https://a.example.com", "https://evilexample.com:8443"]),
        ("*", ["https://any.org", "http://10.0.0.1"], ["http://any.org:8080"]),
        ("[2606:4700::1]:8080", ["http://[2606:4700::1]:8080"], ["http://[2606:4700::1]", "http://[2606:4700::2]:8080"]),
        ("[2606:4700::1]", ["http://[2606:4700::1]"], ["http://[2606:4700::1]:8080"]),
    ],
)  # fmt: skip
async def test_K10_patterns_of_hosts(pattern: str, fits: list[str], others: list[str]) -> None:
    Config.model_validate({"workflows": {"api_hosts": [pattern]}})
    asked: list[str] = []

    async def permit(host: str, request: dict[str, Any], name: str) -> None:
        asked.append(host)

    for url in (*fits, *others):
        asked.clear()
        await Http(hosts=[pattern], permit=permit)._check_host(httpx2.URL(url), {}, "a")
        assert bool(asked) == (url in others), url


def test_K10_patterns_that_are_no_hosts(tmp_path: Path) -> None:
    file = tmp_path / "keephold.toml"
    for wrong in ("https://example.com", "a.*.com", "example.com/x", "", "exa mple", "*example.com", "x:port"):
        file.write_text(f"[workflows]\napi_hosts = [{json.dumps(wrong)}]\n")
        with pytest.raises(ConfigError, match=r'api_hosts.0: must be a host, such as "api.example.com", "\*.example'):
            load_config(file)


def api(id: str, url: str) -> dict[str, Any]:
    return {"id": id, "type": "api", "config": {"url": url}}


async def workflow(ask: Caller, *steps: dict[str, Any]) -> dict[str, Any]:
    begun = await ask("execute_workflow_async", workflowId="w", name="w", steps=list(steps))
    ended: dict[str, Any] = await ask.wait_for(begun["handleId"])
    return ended


async def test_K10_a_person_is_asked_about_a_host_once_a_run() -> None:
    """Also by steps that run side by side; the question shows the request, and no model may answer it."""
    async with server(echo, OUTSIDE) as url:
        host = url.removeprefix("http://")
        person = Person(Answer(True), Answer(False), Answer(True))
        async with with_wait_tools(prompter=person) as rt:
            ask = Caller(rt)
            branches = [[api(f"a{at}", f"{url}/{at}")] for at in range(3)]
            beside = {"id": "p", "type": "parallel", "config": {"branches": branches}}
            ended = await workflow(ask, beside, api("b", f"{url}/b"))
            assert (ended["status"], ended["result"]["finalOutput"]["body"]["path"]) == ("completed", "/b")
            (asked,) = person.seen
            assert isinstance(asked, AskQuestion) and asked.question.id == "allow_api_host"
            assert asked.question.text == f"May this workflow send requests to `{host}`?"
            assert asked.question.pre_amble is not None and f'"url":"{url}/0"' in asked.question.pre_amble
            refused = await workflow(ask, api("a", url))
            assert refused["error"] == f"step `a` failed: The user does not allow requests to `{host}`."
            await workflow(ask, api("a", url))
            assert len(person.seen) == 3  # each run asks again


@pytest.mark.parametrize(("detached", "error"), [("deny", "to `api_hosts` in [workflows]"), ("auto", "not a public")])
async def test_K10_without_a_person_a_host_must_be_listed(detached: Any, error: str) -> None:
    """`auto` lets workflows run unattended; internal addresses stay out of reach."""
    config = Config.model_validate({"conversation": {"detached": detached}, "workflows": WorkflowSettings()})
    async with with_wait_tools(config=config) as rt:
        ended = await workflow(Caller(rt), api("a", f"http://{INSIDE}:9/"))
    assert ended["status"] == "failed" and error in ended["error"]


async def test_K10_a_model_cannot_ask_in_the_users_place() -> None:
    """The tool that asks about hosts is not one that models, workflow steps and MCP clients can call."""
    async with with_wait_tools() as rt:
        ask = Caller(rt)
        call = {"name": "allow_api_host", "arguments": {"host": "x", "request": {}}}
        refused = await ask.error("execute_workflow_async", workflowId="w", name="w", steps=[
            {"id": "a", "type": "tool", "config": call}])  # fmt: skip
        assert refused["error"] == "step `a`: there is no tool `allow_api_host`"
        assert (await ask.response("allow_api_host", host="x", request={})).code == "unknown_tool"


async def test_P4_the_timeout_of_a_step_waits_for_the_person(clock: VirtualClock) -> None:
    async def permit(host: str, request: dict[str, Any], name: str) -> None:
        await asyncio.sleep(3600)

    http = Http(private=True, permit=permit)
    http._client = httpx2.AsyncClient(transport=httpx2.MockTransport(lambda _: httpx2.Response(200, text="late")))
    given = {"method": "GET", "url": "http://example.org/", "headers": {}}
    assert (await http.request(given, "a", 0.05))["body"] == "late"
    await http.close()
