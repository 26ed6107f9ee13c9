"""Random orders of everything that can happen to a prompt, in virtual time, on stores that commit at once or later.

Whatever the order: one prompt at a time, in the order they were asked for; every answer at the tool and the question it
was given for; nothing shown that nobody needs; at the end nothing open, nothing left, no error outside.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.stores import HeldStore, NextPassStore
from tests.soak import tries
from tests.turn.calls import STATEFUL, TALKING, abort, apply, call, reply, spawn, wait_all
from tests.turn.people import Model, Person, exactly, few

import keephold
from keephold import Call, Key, Pending, Question, Runtime, Tool, ToolCall, ToolError
from keephold.handles.state import Stopped, Waiting
from keephold.outcomes import Ok
from keephold.policies import QuestionPolicy
from keephold.store.base import Store
from keephold.store.memory import MemoryStore
from keephold.testing import VirtualClock
from keephold.turn.prompts import Answer, Approved, AskQuestion, Denied, Dismissed, Edited, Prompt, RunTool
from keephold.turn.tool_call import ActiveCall, call_on

Step = tuple[str, int]
wrong: list[str] = []
"""What must not have happened, in words."""


def make(name: str, questions: str, policy: QuestionPolicy | None = None, **options: Any) -> Tool:
    """A tool that asks so many questions, and knows which answers are its own."""
    policies = {} if policy is None else dict.fromkeys(questions, policy)

    @keephold.tool(name=name, actions=TALKING, questions=policies, **options)
    async def work(call: Call, me: str) -> str:
        for id in questions:
            answer = await call.ask(Question(id=id, text=f"{me} {id}", answer_type="Text"))
            # Whoever applies or sends something names the handle; which question is open then is the handle's affair.
            if answer not in (f"person:{me} {id}", f"model:{me} {id}", f"caller:{me}", f"sent:{me}"):
                wrong.append(f"{me} asked {id} and was answered {answer}")
        await asyncio.sleep(0.5)
        return me

    return work


TOOLS = [
    make("asks", "pq"),
    make("exclusive", "p", QuestionPolicy(exclusive=True)),
    make("modelled", "pq", QuestionPolicy(target="assistant")),
    make("guarded", "", run="ask"),
    make("serial", "p", run="edit", scheduling="serial"),
    make("shown", "", result="ask"),
    make("everything", "p", run="ask", result="edit", run_actions={"apply": "ask"}),
]
KINDS = tuple(tool.name for tool in TOOLS)


class Scene:
    """A runtime with a person and a model, handles that ask, and what came of it."""

    def __init__(self, clock: VirtualClock, store: Store) -> None:
        self.clock = clock
        self.person, self.model = Person(), Model()
        wrong.clear()
        self.ids: list[tuple[str, str]] = []
        self.batch: asyncio.Task[Any] | None = None
        self.sending: list[asyncio.Task[Any]] = []
        self.rt = Runtime(TOOLS, clock=clock, store=store, prompter=self.person, inquiry=self.model)
        self.asked: list[str] = []
        """The ids of the prompts, as they were asked for."""
        approvals: Any = self.rt.approvals
        opened = approvals.opened

        def note(asking: object) -> str:
            self.asked.append(opened(asking))
            return self.asked[-1]

        approvals.opened = note

    # What may happen

    async def play(self, steps: list[Step], end: str) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(str(context)))
        async with self.rt:
            self.turn = await self.rt.turn("main").__aenter__()
            for step, number in steps:
                await getattr(self, step)(number)
                self._look()
            await self._end(end)
            self._look()
            self._is_over()

    async def passes(self, number: int) -> None:
        await few(number)

    async def time(self, number: int) -> None:
        await self.clock.advance(number * 0.3)

    async def begin(self, number: int) -> None:
        """A batch, if none is open: a few calls, spawned or one-shot, perhaps with an await of all there are."""
        if self.batch is not None and not self.batch.done():
            return
        calls: list[ToolCall] = []
        for at in range(1 + number % 4):
            kind, me = KINDS[(number + at * 3) % len(KINDS)], f"h{len(self.ids)}"
            self.ids.append((kind, me))
            calls.append(call(kind, me=me) if (number + at) % 4 == 3 else spawn(kind, me, me=me))
        if number % 2:
            calls.append(call("await", all=[me for _, me in self.ids], timeout_secs=3))
        await self._run(*calls)

    async def _run(self, *calls: ToolCall) -> None:
        self.batch = asyncio.create_task(self.turn.run(calls))
        await asyncio.sleep(0)  # it has begun: otherwise the turn may be over before it

    async def apply(self, number: int) -> None:
        await self._act(number, lambda kind, me: apply(kind, me, f"caller:{me}"))

    async def abort(self, number: int) -> None:
        await self._act(number, abort)

    async def _act(self, number: int, what: Callable[[str, str], ToolCall]) -> None:
        if self.ids and (self.batch is None or self.batch.done()):
            await self._run(what(*self.ids[number % len(self.ids)]))

    async def person_aborts(self, number: int) -> None:
        if not self.ids:
            return
        _, me = self.ids[number % len(self.ids)]
        try:
            handle = self.rt.registry.find(me, "main")
        except ToolError:
            return
        self.rt.actions.act(ActiveCall(call_on(handle, "abort", {}, "person"), lambda *_: None, handle=handle))

    async def person_sends(self, number: int) -> None:
        if self.ids:
            _, me = self.ids[number % len(self.ids)]
            self.sending.append(asyncio.create_task(self.rt.send(me, f"sent:{me}", conversation="main")))

    async def person_says(self, number: int) -> None:
        if not self.person.open:
            return
        prompt = self.person.open[0]
        decisions: list[Any]
        if isinstance(prompt, AskQuestion):
            me = prompt.question.text.split()[0]
            good = Answer(f"person:{me} {prompt.question.id}")
            decisions = [
                good,
                good,
                good,
                Answer(7),
                Dismissed(),
                RuntimeError("no terminal"),
                Approved(),
                Answer(None),
            ]
        else:
            edited = Edited(dict(prompt.arguments)) if isinstance(prompt, RunTool) else Edited("text")
            decisions = [
                Approved(),
                Approved(),
                Approved(),
                edited,
                Edited(5),
                Denied("no"),
                Dismissed(),
                ValueError("x"),
            ]
        await self.person.says(decisions[number % len(decisions)])

    async def elsewhere(self, number: int) -> None:
        """Another process decides any of the open prompts, shown or not (P6)."""
        approvals: Any = self.rt.approvals
        if not approvals.open:
            return
        id, asking = list(approvals.open.items())[number % len(approvals.open)]
        prompt = asking.prompt
        if isinstance(prompt, AskQuestion):
            said: dict[str, Any] = {
                "decision": "answer",
                "value": f"person:{prompt.question.text.split()[0]} {prompt.question.id}",
            }
        else:
            value = dict(prompt.arguments) if isinstance(prompt, RunTool) else "text"
            word = ["approve", "deny", "edit", "cancel"][number % 4]
            said = {"decision": word, "digest": prompt.digest, "value": value}
        assert approvals.decide(id, {**said, "digest": "of something else"}, "a test")["status"] == "again"
        assert approvals.decide(id, said, "a test")["status"] == "taken"
        assert approvals.decide(id, said, "a test")["status"] == "gone"

    async def model_says(self, number: int) -> None:
        if not self.model.open:
            return
        inquiry = self.model.open[0]
        answers = [
            "model:" + " ".join(inquiry.text.split("asks: ")[1].split()[:2]),
            7,
            exactly(None),
            RuntimeError("no credit"),
        ]
        await self.model.says(answers[0 if number % 3 else number % len(answers)])

    # What must hold

    def _look(self) -> None:
        assert wrong == []
        assert self.person.at_once <= 1
        shown = [prompt for prompt in self.person.seen if getattr(prompt, "problem", None) is None]
        places = [self.asked.index(prompt.request) for prompt in shown]
        assert places == sorted(places), "not first come first served"
        people: Any = self.rt.prompt_queue
        for asking in (*people._waiting, *people._shown, *people._left):
            if asking.then is not None:
                assert self._is_needed(asking.prompt), f"nobody needs an answer to {asking.prompt}"

    def _is_needed(self, prompt: Prompt) -> bool:
        if prompt.id is None or (isinstance(prompt, RunTool) and prompt.action == "apply"):
            return True
        handle = self.rt.registry.find(prompt.id, "main")
        match prompt:
            case AskQuestion():
                return isinstance(handle.decided, Waiting) and handle.decided.question == prompt.question
            case RunTool():
                return not isinstance(handle.state, Stopped) and handle.run is None
            case _:
                return handle.run is not None and handle.run.delivering

    async def _end(self, how: str) -> None:
        if how == "close":
            await self.rt.close()
            if self.batch is not None:
                await asyncio.wait([self.batch])
                self.batch.exception()
        else:
            if how == "cancel":
                self.turn.cancel()
            if self.batch is not None and how == "answer":
                await self._answer_everything()
            self.model.ready.extend([exactly({"handles": []})] * 3)
            await self.turn.end()
            if self.batch is not None:
                responses = await self.batch
                assert all(response is not None for response in responses)
        for task in self.sending:
            await asyncio.wait([task])
            task.exception()
        await few(20)

    async def _answer_everything(self) -> None:
        assert self.batch is not None
        for _ in range(200):
            if self.batch.done():
                return
            await self.person_says(0)
            await self.model_says(1)
            await self.clock.advance(0.3)
        raise AssertionError("the batch is never answered")

    def _is_over(self) -> None:
        people: Any = self.rt.prompt_queue
        admission: Any = self.rt.admission
        approvals: Any = self.rt.approvals
        assert people._shown == [] and not people._waiting and approvals.open == {}
        assert self.person.open == [] and self.model.open == []
        assert admission._deliveries == {} and admission._questions._asked == {}
        assert self.rt.registry.conversation("main").open_questions == 0
        assert self.rt.live() == []
        assert wrong == []


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "begin",
                "begin",
                "begin",
                "person_says",
                "person_says",
                "person_says",
                "elsewhere",
                "model_says",
                "apply",
                "abort",
                "person_aborts",
                "person_sends",
                "passes",
                "passes",
                "time",
            ]
        ),
        st.integers(0, 11),
    ),
    min_size=3,
    max_size=40,
)


@pytest.mark.slow
@settings(max_examples=tries(80, soak=200))
@given(STEPS, st.sampled_from(["answer", "cancel", "turn end", "close"]), st.sampled_from([MemoryStore, NextPassStore]))
def test_Q5_P5_whatever_happens_to_prompts_in_whatever_order(
    steps: list[Step], end: str, store: Callable[[], Store]
) -> None:
    logging.disable(logging.CRITICAL)  # prompters and models that fail are part of it
    try:
        clock = VirtualClock()
        clock.run(_play(clock, store(), steps, end))
    finally:
        logging.disable(logging.NOTSET)


async def _play(clock: VirtualClock, store: Store, steps: list[Step], end: str) -> None:
    await Scene(clock, store).play(steps, end)


# In the instant between decided and written


async def test_S2_a_question_whose_handle_is_ended_before_it_is_written_is_never_shown(clock: VirtualClock) -> None:
    scene = Scene(clock, store := HeldStore())
    async with scene.rt as rt, rt.turn("main") as turn:
        await turn.run([spawn("asks", "a", me="a")])
        await scene.person.sees()
        store.on_hold = True
        await scene.person.says(Answer("person:a p"))
        await few()
        store.release()  # the answer is written; it asks again, which is not
        await clock.advance(1)
        scene.ids = [("asks", "a")]
        await scene.person_aborts(0)
        store.on_hold = False
        store.release()
        await clock.advance(5)
        assert len(scene.person.seen) == 1 and (await rt.handle("a", conversation="main")).ended_by == "abort"


async def test_Q3_of_two_answers_in_one_instant_the_first_counts(clock: VirtualClock) -> None:
    """The person's is decided and not yet written when another one comes: that one finds nothing open."""
    scene = Scene(clock, store := HeldStore())
    async with scene.rt as rt, rt.turn("main") as turn:
        await turn.run([spawn("exclusive", "a", me="a")])
        await scene.person.sees()
        store.on_hold = True
        await scene.person.says(Answer("person:a p"))
        await few()
        late = asyncio.create_task(rt.send("a", "sent:a", conversation="main"))
        await few()
        store.on_hold = False
        store.release()
        await asyncio.wait([late])
        assert (await reply(turn, wait_all("a")))["completed"][0]["result"] == "a"
        assert wrong == []


async def test_Q3_a_model_that_answers_while_the_callers_answer_is_written(clock: VirtualClock) -> None:
    scene = Scene(clock, store := HeldStore())
    async with scene.rt, scene.rt.turn("main") as turn:
        await turn.run([spawn("modelled", "a", me="a"), call("await", all=["a"], timeout_secs=1)])
        await scene.model.sees()
        store.on_hold = True
        sent = asyncio.create_task(scene.rt.send("a", "sent:a", conversation="main"))
        await few()
        assert scene.model.open == []  # withdrawn as soon as the answer is decided
        store.on_hold = False
        store.release()
        await sent
        await clock.advance(1)
        await turn.run([call("await", all=["a"], timeout_secs=1)])
        await scene.model.says("model:a q")
        assert (await reply(turn, wait_all("a")))["completed"][0]["result"] == "a"
        assert wrong == []


async def test_P5_D9_a_held_completion_is_not_asked_about_again_while_its_end_is_written(clock: VirtualClock) -> None:
    """Another completion comes, or a sweep, in the instant between the person's word and its record."""
    keys, person, store = list[Key](), Person(), HeldStore()

    @keephold.tool(actions=STATEFUL, result="ask")
    async def approve(call: Call) -> Pending:
        keys.append(await call.completion_key())
        return Pending()

    async with Runtime([approve], clock=clock, store=store, prompter=person) as rt, rt.turn("main") as turn:
        await turn.run([spawn("approve", "a"), spawn("approve", "b")])
        await clock.advance(1)
        await rt.resolve(keys[0], {"status": "ok", "payload": 1})
        await person.sees()
        store.on_hold = True
        await person.says(Approved())
        await few()
        await rt.recovery.unowned()
        await few()
        store.on_hold = False
        store.release()
        await clock.advance(1)
        assert len(person.seen) == 1
        assert (await rt.handle("a", conversation="main")).outcome == Ok(1)
