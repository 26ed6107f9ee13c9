"""Checks of the handshake: `initialize`."""

from keephold.acp.check.probe import Died, Silent
from keephold.acp.check.recording import table
from keephold.acp.check.scenes import Scenes, shake_hands
from keephold.acp.check.verdict import Failed, check
from keephold.acp.extension import PROTOCOL_VERSION


@check("initialize", "initialize is answered with protocol version 1 and the agent's capabilities")
async def initialize(scenes: Scenes) -> None:
    recording = await scenes.try_hello()
    if recording.problem is not None:
        raise Failed(recording.problem, recording.log[-2:])
    answer = recording.response(recording.log[0])
    assert answer is not None
    result = table(answer.message, "result")
    if "error" in answer.message:
        raise Failed("initialize was answered with an error", [answer])
    if type(result.get("protocolVersion")) is not int:
        raise Failed("protocolVersion must be an integer", [answer])
    if result["protocolVersion"] != PROTOCOL_VERSION:
        raise Failed(f"asked for protocol version 1, the agent chose {result['protocolVersion']}", [answer])
    if not isinstance(result.get("agentCapabilities", {}), dict):
        raise Failed("agentCapabilities must be an object", [answer])


@check("version-negotiation", "a version that the agent does not know is answered with one that it does")
async def version_negotiation(scenes: Scenes) -> None:
    await scenes.hello()
    async with scenes.agent(handshake=False) as probe:
        answer = await shake_hands(probe, protocolVersion=65535)
        version = table(answer.message, "result").get("protocolVersion")
        if "error" in answer.message:
            raise Failed(
                "an unknown version must be answered with a version that is known, not with an error", [answer]
            )
        if type(version) is not int or version == 65535:
            raise Failed(f"the agent claims to speak version {version!r}", [answer])


@check("unknown-capabilities", "capabilities and fields that the agent does not know are ignored")
async def unknown_capabilities(scenes: Scenes) -> None:
    await scenes.hello()
    async with scenes.agent(handshake=False) as probe:
        offered = {
            "fs": {"readTextFile": False, "writeTextFile": False, "keepholdNoSuch": True},
            "terminal": False,
            "keepholdNoSuch": {"deep": [1, None]},
            "_meta": {"keephold/no_such": True},
        }
        client = {"name": "acp-check", "title": None, "version": "1", "_meta": {"keephold/no_such": 1}}
        try:
            answer = await shake_hands(probe, clientCapabilities=offered, clientInfo=client)
        except (Died, Silent) as problem:
            raise Failed(f"with unknown capabilities: {problem}", probe.log) from None
        if "error" in answer.message:
            raise Failed("unknown capabilities must be ignored", probe.log)
