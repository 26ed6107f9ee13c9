"""Functions that `make run` serves beside the commands of `keephold.toml`."""

import asyncio
from typing import Any, Literal

import keephold


async def _upload(release: dict[str, Any]) -> str:
    await asyncio.sleep(0.3)
    return f"{release['target']} is on {release['place']}"


@keephold.tool(actions=("spawn", "fetch", "apply", "abort"), on_crash="replay")
async def deploy(call: keephold.Call, target: str) -> str:
    """Deploy a target. Asks the user where to deploy. Deploys once, also if the server is killed during the call."""
    call.emit(f"{target} is ready\n")
    where = keephold.Question("where", f"Where should {target} go?", Literal["staging", "production"])
    release = {"target": target, "place": await call.ask(where)}
    call.progress(1, 2, f"uploading to {release['place']}")
    return str(await call.durable().run_json("upload", release, _upload))
