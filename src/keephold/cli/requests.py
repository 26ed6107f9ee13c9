"""`keephold requests`: list what waits for the user, in all processes. `allow`, `deny`: decide one. `permissions`: list
and revoke the decisions that hold for later calls, too (P6).

The user sees all of what they allow: arguments and results are printed in full. A decision is for exactly these: it
carries the digest of the request, and is refused if the request has changed meanwhile.
"""

import shlex
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

import click

from keephold.cli.parameters import json_lines_option, json_option
from keephold.cli.printing import note, one_line, printable, relative, tell, tell_each
from keephold.cli.show import answer_lines
from keephold.cli.store import Where, act, look, where_options
from keephold.control.base import Controls, Looking
from keephold.errors import KeepholdError
from keephold.text import exact, isolated, isolated_json, readable_json

_ACTS = {"spawn": "start", "apply": "be sent something", "fetch": "be looked at", "abort": "be aborted"}


@click.command()
@where_options
@json_lines_option
def requests(where: Where, as_json: bool) -> None:
    """List the open requests to the user: permissions, results to approve, and questions, of all processes.

    Arguments and results are printed in full. Decide a permission or a result with `keephold allow` and `keephold
    deny`; answer a question with `keephold send` and the id of the request or of its handle.
    """
    listed, more, place = look(where, lambda looking: _listed(looking, as_json))
    lines = chain.from_iterable(map(_lines, listed)) if listed else (note(f"(no open request in {place})"),)
    tell_each(listed, lines, as_json=as_json)
    if more > 0:
        click.echo(f"These are the oldest {len(listed)}; there are {more} more. Decide some to see them.", err=True)


async def _listed(looking: Looking, as_json: bool) -> tuple[list[dict[str, Any]], int, str]:
    """Return the requests, how many more there are, and the name of the store. To be shown, questions of one-shot calls
    get the id of their handle, by which they are answered."""
    found, more = await looking.requests()
    for request in () if as_json else found:
        if request["question"] is not None and request["handle_id"] is None and request["handle"] is not None:
            with suppress(KeepholdError):  # it has stopped meanwhile
                (fact,) = await looking.find((request["handle"],), None)
                request["handle_id"] = fact["id"]
    return found, more, looking.place


@click.command()
@click.argument("ID")
@where_options
@json_option
def allow(id: str, where: Where, as_json: bool) -> None:
    """Allow the call of an open request, or let the model see its result. ID is from `keephold requests`."""
    _decide(id, {"decision": "approve"}, "allowed", where, as_json)


@click.command()
@click.argument("ID")
@click.option("--reason", metavar="TEXT", help="Tell the model why.")
@where_options
@json_option
def deny(id: str, reason: str | None, where: Where, as_json: bool) -> None:
    """Deny the call of an open request, or withhold its result. ID is from `keephold requests`."""
    _decide(id, {"decision": "deny"} | ({"reason": reason} if reason else {}), "denied", where, as_json)


def _decide(id: str, said: dict[str, Any], done: str, where: Where, as_json: bool) -> None:
    async def decided(controls: Controls) -> dict[str, Any]:
        request = await controls.request(id)
        if request["kind"] not in ("permission", "result"):
            name = shlex.quote(one_line(request["handle_id"] or request["handle"]))
            raise KeepholdError(
                f"`{one_line(id)}` is a question; answer it with `keephold send {name}`", code="invalid_arguments"
            )
        if not as_json:
            click.echo("\n".join(_lines(request)))
        answer = await controls.decide(id, said | {"digest": request["digest"]})
        if answer["status"] != "taken":
            code = "request_gone" if answer["status"] == "gone" else "invalid_arguments"
            raise KeepholdError(f"request `{one_line(id)}`: {answer['problem']}", code=code)
        return request

    request = act(where, decided)
    facts = {"id": id, "decision": said["decision"], "digest": request["digest"], "request": request}
    tell(facts, f"{one_line(id)}: {done}", as_json=as_json)


@click.command()
@click.option("--revoke", "revoked", metavar="ID", help="End this standing permission: the next call asks again.")
@where_options
@json_lines_option
def permissions(revoked: str | None, where: Where, as_json: bool) -> None:
    """List the standing permissions of all processes, or revoke one.

    A standing permission is a decision of the user that holds for later calls, too: for one tool in one conversation,
    until its turn ends. Without a turn, as over MCP, it holds until it is revoked or its process ends.
    """
    if revoked is None:
        listed = look(where, lambda looking: looking.permissions())
        tell_each(listed, chain.from_iterable(map(_permission_lines, listed)), as_json=as_json)
        return
    answer = act(where, lambda controls: controls.revoke_permission(revoked))
    if not answer["revoked"]:
        raise KeepholdError(
            f"there is no standing permission `{one_line(revoked)}`; `keephold permissions` lists them",
            code="request_gone",
        )
    tell({"id": revoked, "revoked": True}, f"{one_line(revoked)}: revoked", as_json=as_json)


def _lines(request: dict[str, Any]) -> Iterator[str]:
    tool, now = one_line(request["tool"]), time.time()
    match request["kind"]:
        case "permission":
            asks, body = f"may {tool} {_ACTS.get(request['action'], 'run')}?", _json(request["arguments"])
        case "result":
            asks, body = f"may the model see the result of {tool}?", isolated(exact(request["result"]))
        case _:
            asks, body = f"{tool} asks", printable(request["question"]["text"])
            body = "\n".join(
                (body.rstrip("\n"), *(f"  {one_line(line)}" for line in answer_lines(request["question"])))
            )
    handle = f"handle {one_line(request['handle_id'])}, " if request["handle_id"] else ""
    place = f"{handle}conversation {one_line(request['conversation'])}, {relative(request['since'], now)}"
    yield f"{click.style(one_line(request['id']), bold=True)}  {asks}"
    yield f"  {place}"
    yield from (f"    {line}" for line in body.rstrip("\n").split("\n"))


def _permission_lines(each: dict[str, Any]) -> Iterator[str]:
    from keephold.turn.prompts import lasting

    tool = one_line(each["tool"])
    if each["kind"] == "permission":
        what = f"{tool} {'may run' if each['value'] else 'is skipped'}"
    else:
        what = f"{tool} gets {one_line(each['value'])} as the answer to {one_line(each['question'])}"
    yield f"{click.style(one_line(each['id']), bold=True)}  {what}, {lasting(each['until'])}"
    given = f"given by {one_line(each['by'])} {relative(each['at'], time.time())}"
    yield f"  conversation {one_line(each['conversation'])}, {given}"
    if each["arguments"] is not None:
        yield f"  for a call with {one_line(_json(each['arguments']))}"


def _json(value: Any) -> str:
    """Return JSON to read, in which everything is visible."""
    return isolated_json(readable_json(value))
