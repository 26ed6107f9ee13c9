"""`make run`, as the quickstart has it: an agent starts two builds and a terminal, a person answers in the browser."""

import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from playwright.async_api import expect
from tests.browser.browsing import WIDE, browser, page, press
from tests.mcp.clients import connected, read
from tests.patience import PATIENCE
from tests.serve.serving import ROOT, environment


def recipe() -> list[str]:
    """What `make run` runs last, in the environment that it makes."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}  # it may be make that tests
    subprocess.run(["make", "build/run/ready"], cwd=ROOT, env=env, check=True)
    command = ["make", "-n", "run"]
    told = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    return shlex.split(told.stdout.splitlines()[-1])


@contextmanager
def running(directory: Path) -> Iterator[str]:
    """The address that it prints. Its port and its store are ours, so that it meets nobody else's."""
    words = recipe()
    words[words.index("--store") + 1] = f"sqlite:///{directory / 'store.db'}"
    said = directory / "said"
    with (
        said.open("w") as file,
        subprocess.Popen(
            [*words, "--port", "0"],
            cwd=ROOT,
            env=environment(directory),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        ) as process,
    ):
        try:
            while (found := re.search(r"http://\S+(?=.*\n)", said.read_text())) is None:
                assert process.poll() is None, said.read_text()
                time.sleep(0.02)
            made = re.search(r"\(token: (\S+)\)", said.read_text())
            assert made is not None, said.read_text()
            yield f"{found[0]}?token={(ROOT / made[1]).read_text().strip()}"
        finally:
            process.terminate()
            process.wait(PATIENCE)


async def test_L1_make_run_is_all_that_is_needed(tmp_path: Path) -> None:
    with running(tmp_path) as address:
        place = urlsplit(address)
        token = place.query.removeprefix("token=")
        async with (
            connected(f"http://{place.netloc}/mcp", token=token) as client,
            browser() as chromium,
            page(chromium, WIDE, entry=address) as tab,
        ):
            for target in ("app", "docs"):
                await client.call_tool("build", {"action": "spawn", "id": target, "target": target, "steps": 2})
            await client.call_tool("shell", {"action": "spawn", "id": "shell"})
            await client.call_tool("deploy", {"action": "spawn", "id": "deploy", "target": "app"})
            for id in ("app", "docs", "shell"):
                await expect(tab.get_by_role("link", name=id, exact=True).first).to_be_visible()
            await press(tab.get_by_role("button", name="staging"))
            waited = read(await client.call_tool("await", {"all": ["app", "docs", "deploy"]}))
            results = {each["id"]: each["result"] for each in waited["completed"]}
            assert results["deploy"] == "app is on staging"
            assert results["docs"].endswith("docs: built\n")
