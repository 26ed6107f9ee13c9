"""A release: a tool asks the user, the model gets notifications, and the turn waits for a running check.

Run it: `python examples/release.py`. The model follows a script (`keephold.testing.ScriptedModel`); everything else is
as in a real agent. Time is virtual, so five minutes of tests take no time.
"""

import asyncio

import keephold
from keephold.testing import Says, ScriptedModel, VirtualClock


@keephold.tool(actions=("spawn", "fetch", "abort"))
async def check(call: keephold.Call, what: str, minutes: float) -> str:
    """Check something, slowly."""
    call.emit(f"checking the {what}\n")
    await asyncio.sleep(60 * minutes)
    return f"{what}: all well"


@keephold.tool
async def migrate(call: keephold.Call, table: str) -> str:
    """Change the database. Ask before dropping a table."""
    drop = keephold.Question("drop", f"Drop the table {table}?", bool)
    return f"{table} dropped" if await call.ask(drop) else f"{table} kept"


async def user(
    prompt: keephold.prompts.RunTool | keephold.prompts.DeliverResult | keephold.prompts.AskQuestion,
) -> keephold.prompts.Answer | keephold.prompts.Dismissed:
    """Play the user, who takes two minutes and says no. In a real program: a terminal, a chat or a page."""
    assert isinstance(prompt, keephold.prompts.AskQuestion)  # no tool of this program needs approval
    await asyncio.sleep(120)
    print(f"{prompt.tool} asks: {prompt.question.text}\nuser: No.\n")
    return keephold.prompts.Answer(False)


def release() -> ScriptedModel:
    return ScriptedModel(
        [
            Says(
                "I check links and tests.",
                [
                    ("check", {"action": "spawn", "id": "links", "what": "links", "minutes": 1}),
                    ("check", {"action": "spawn", "id": "tests", "what": "tests", "minutes": 5}),
                ],
            ),
            Says("Meanwhile I migrate.", [("migrate", {"table": "old_users"})]),
            "The links are done, and the table was kept. The tests still run.",
            "The tests are well, too. It can be released.",
        ],
        at_end="wait",  # its answer when asked about running handles
    )


async def main(clock: VirtualClock) -> None:
    model = release()
    print("The user sees\n")
    async with keephold.Runtime([check, migrate], clock=clock, prompter=user, inquiry=model.inquiry) as rt:
        turn = await model.converse(rt, "Is it ready for a release?")
        assert turn.ending is not None and not turn.ending.aborted
    print("The model sees\n")
    for heard, said in zip(model.seen, model.said, strict=True):
        print(f"{heard.role}: {heard.text}")
        print(f"assistant: {said.text}")
        print("".join(f"  {call.name} {call.arguments}\n" for call in said.calls))


if __name__ == "__main__":
    clock = VirtualClock()
    clock.run(main(clock))
