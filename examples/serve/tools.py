"""Functions that `make run` serves beside the commands of `keephold.toml`."""

import asyncio
from typing import Any

import keephold

_PLACES = ["staging", "production"]


async def _upload(release: dict[str, Any]) -> str:
    await asyncio.sleep(0.3)
    return f"{release['target']} is on {release['place']}"


@keephold.tool(actions=("spawn", "fetch", "apply", "abort"), on_crash="replay")
async def deploy(call: keephold.Call, target: str) -> str:
    """Deploy a target: asks a person where to, and is done once, also if the server is killed on the way."""
    call.emit(f"{target} is ready\n")
    where = keephold.Question(
        id="where", text=f"Where should {target} go?", answer_type={"Select": {"options": _PLACES}}
    )
    release = {"target": target, "place": await call.ask(where)}
    call.progress(1, 2, f"uploading to {release['place']}")
    return str(await call.durable().run_json("upload", release, _upload))
