"""A release: a person is asked, news arrives, and the turn ends later than the model thought.

Run it: `python examples/release.py`. The model plays a script (`keephold.testing.ScriptedModel`); around it
everything is as in an agent. Time is virtual, so that five minutes of tests take none.
"""

import asyncio

import keephold
from keephold.testing import Says, ScriptedModel, VirtualClock


@keephold.tool(actions=("spawn", "fetch", "abort"))
async def check(call: keephold.Call, what: str, minutes: float) -> str:
    """Check something; it takes its time."""
    call.emit(f"checking the {what}\n")
    await asyncio.sleep(60 * minutes)
    return f"{what}: all well"


@keephold.tool
async def migrate(call: keephold.Call, table: str) -> str:
    """Change the database. Asks before it drops a table."""
    drop = keephold.Question(id="drop", text=f"Drop the table {table}?", answer_type="Boolean")
    return f"{table} dropped" if await call.ask(drop) else f"{table} kept"


async def person(
    prompt: keephold.prompts.RunTool | keephold.prompts.DeliverResult | keephold.prompts.AskQuestion,
) -> keephold.prompts.Answer | keephold.prompts.Dismissed:
    """The prompter: in real life a terminal, a chat, a page. This person takes two minutes, and says no."""
    assert isinstance(prompt, keephold.prompts.AskQuestion)  # no tool of this program needs permission
    await asyncio.sleep(120)
    print(f"{prompt.tool} asks: {prompt.question.text}\nperson: No.\n")
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
        at_end="wait",  # what it says when it is asked about tools that still run
    )


async def main(clock: VirtualClock) -> None:
    model = release()
    print("What the person sees\n")
    async with keephold.Runtime([check, migrate], clock=clock, prompter=person, inquiry=model.inquiry) as rt:
        turn = await model.converse(rt, "Is it ready for a release?")
        assert turn.ending is not None and not turn.ending.aborted
    print("What the model sees\n")
    for heard, said in zip(model.seen, model.said, strict=True):
        print(f"{heard.role}: {heard.text}")
        print(f"assistant: {said.text}")
        print("".join(f"  {call.name} {call.arguments}\n" for call in said.calls))


if __name__ == "__main__":
    clock = VirtualClock()
    clock.run(main(clock))
