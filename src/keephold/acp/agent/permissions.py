"""Show prompts as requests to a client, and read the user's decision (P, Q over ACP).

Approvals of calls and results, and questions with few answers, are permission requests. A text is asked for by a form,
if the client has forms. A secret is never asked for: it would pass through the client and its logs. A question that the
client cannot ask stays open for a terminal, if its handle takes input.
"""

import shlex
from typing import Any, NamedTuple

from keephold.acp.agent.updates import shown_text
from keephold.handles.question import Question, form_answer, form_of, question_text, select_options
from keephold.text import exact, exact_json, exact_line, to_json
from keephold.turn import prompts

_SHOWN = 4000
"""How many characters of a client's invalid answer an error repeats."""


class Choice(NamedTuple):
    """A permission request, without the ids of session and tool call."""

    fields: dict[str, Any]
    """The fields of the tool call."""
    options: list[dict[str, str]]
    decisions: dict[str, prompts.Decision]
    """The decision that each option means."""


def permission(prompt: prompts.Prompt, title: str) -> Choice | None:
    """Return the prompt as a choice; None if it is not one. `title` is that of the tool call."""
    match prompt:
        case prompts.RunTool():
            return _run_tool(prompt, title)
        case prompts.DeliverResult():
            return _deliver(prompt, title)
        case prompts.AskQuestion():
            return None if prompt.question.secret else _question(prompt)


def _choice(fields: dict[str, Any], *options: tuple[str, str, str, prompts.Decision]) -> Choice:
    """Each option is its id, its name, its kind, and the decision that it means."""
    shown = [{"optionId": id, "name": name, "kind": kind} for id, name, kind, _ in options]
    return Choice(fields, shown, {id: decision for id, _, _, decision in options})


def _run_tool(prompt: prompts.RunTool, title: str) -> Choice:
    turn = f"`{prompt.tool}` {prompts.lasting(prompt.until)}"
    fields: dict[str, Any] = {"title": title, "status": "pending", "rawInput": prompt.arguments}
    words = [f"Not taken: {prompt.problem}."] if prompt.problem else []
    words.append(f"```json\n{exact_json(to_json(prompt.arguments).decode())}\n```")
    fields["content"] = [shown_text("\n\n".join(words))]
    return _choice(
        fields,
        ("allow_once", "Allow", "allow_once", prompts.Approved()),
        ("allow_always", f"Allow {turn}", "allow_always", prompts.Approved(remember=True)),
        ("reject_once", "Reject", "reject_once", prompts.Denied()),
        ("reject_always", f"Reject {turn}", "reject_always", prompts.Denied(remember=True)),
    )


def _deliver(prompt: prompts.DeliverResult, title: str) -> Choice:
    return _choice(
        {"title": f"Show the assistant the result of {title}?", "content": [shown_text(exact(prompt.result))]},
        ("allow_once", "Show it to the assistant", "allow_once", prompts.Approved()),
        ("reject_once", "Withhold it", "reject_once", prompts.Denied()),
    )


def _question(prompt: prompts.AskQuestion) -> Choice | None:
    question, answer, until = prompt.question, prompts.Answer, prompts.lasting(prompt.until)
    guarded = question.answer_type == "Boolean" or form_of(question) is not None
    title = exact_line(question.text) if guarded else question.text
    fields = {"title": title, "content": [shown_text(question_text(question, prompt.problem))]}
    if question.answer_type == "Boolean":
        once = ("yes", "Yes", "allow_once", answer(True)), ("no", "No", "reject_once", answer(False))
        always = (
            ("always", f"Yes, {until}", "allow_always", answer(True, remember=True)),
            ("never", f"No, {until}", "reject_always", answer(False, remember=True)),
        )
        return _choice(fields, *once, *(always if prompt.may_remember else ()))
    given = select_options(question)
    if given is None:
        return None
    return _choice(fields, *((str(at), option, "allow_once", answer(option)) for at, option in enumerate(given)))


def decided(request: Choice, result: Any) -> prompts.Decision:
    outcome = result.get("outcome") if isinstance(result, dict) else None
    kind = outcome.get("outcome") if isinstance(outcome, dict) else None
    if isinstance(outcome, dict) and kind == "selected" and outcome.get("optionId") in request.decisions:
        return request.decisions[outcome["optionId"]]
    if kind == "cancelled":
        return prompts.Dismissed()
    return prompts.Dismissed(f"the client answered with none of the options: {_clipped(repr(result))}")


def filled_in(question: Question, result: Any) -> prompts.Decision:
    action = result.get("action") if isinstance(result, dict) else None
    if action == "accept":
        content = result.get("content")
        return prompts.Answer(form_answer(question, content) if isinstance(content, dict) else None)
    if action in ("decline", "cancel"):
        return prompts.Dismissed()
    return prompts.Dismissed(f"the client's answer to the form is none: {_clipped(repr(result))}")


def elsewhere(question: Question, uid: str, store: str | None) -> str:
    """Return where to answer a question that this client cannot ask."""
    if store is None:
        return "This client cannot ask for it, and no other program can reach it: the store is in memory."
    where = f"--store {shlex.quote(store)} {uid}"
    if question.secret:
        way = f"`keephold send --password {where}`, or `keephold attach {where}` if it is a terminal"
        return f"A secret is not asked for in an editor. Give it in a terminal: {way}."
    if form_of(question) is not None:
        return f"This client cannot show a form. Answer in a terminal with a JSON object: `keephold send {where} JSON`."
    return f"This client cannot ask for a text. Answer in a terminal: `keephold send {where} TEXT`."


def _clipped(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} … ({len(text) - _SHOWN} more characters)"
