"""What a model is told about tools that run on: spawn, await and the rest, in few words (G1)."""

TEACHING = """\
Tools that take `action` can run in the background. {"action": "spawn", "id": "<a name you choose>", …} starts one and \
answers at once; it goes on while you do other things. Spawn several in one response, and `await` them in the same \
response: `await` with {"all": [ids]} or {"any": [ids]}, and `timeout_secs`, answers when they have finished. Do not \
poll in a loop.
`fetch` shows new output, `apply` sends input or answers a question of the tool, `abort` ends it. Tools without \
`action` run to their end and answer with the result.
Ids are yours to choose; use each for one piece of work. What still runs when you finish is asked about: you may wait \
for it, and then get its result and speak again, or abort it.
Messages that begin with "[Automatic" are not from the user: they tell what has happened meanwhile. Long output is \
cut; `read_output` reads the rest. A call that the user skipped was declined: ask them before you try it again."""


def instructions(*own: str) -> str:
    """The teaching, and whatever else is to be told."""
    return "\n\n".join(text.strip() for text in (TEACHING, *own) if text.strip())
