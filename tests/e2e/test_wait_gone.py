"""`keephold wait` on what a process runs that dies meanwhile: it says so, and goes on waiting (L1, R1)."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.e2e.driver import until
from tests.e2e.place import Place, Worker, spawn
from tests.e2e.servers import served
from tests.patience import PATIENCE


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(tmp_path, stack)


def die(worker: Worker) -> None:
    worker.process.kill()
    worker.process.wait()


@pytest.mark.parametrize("over", ["store", "server"])
def test_R1_wait_tells_of_each_process_that_dies_and_goes_on(place: Place, over: str) -> None:
    with ExitStack() as serving:
        server = serving.enter_context(served(place.directory)) if over == "server" else None
        worker = place.worker()
        worker.run(spawn("approve", "a", what="x"))
        worker.begin(("await", {"all": ["a"]}))  # which is left to whoever resumes the turn (B9)
        until(lambda: "call:0" in place.keephold("ps").out)
        die(worker)
        worker = place.worker()
        worker.run(spawn("steps", "s"), conversation="other")

        waiting = place.start("wait", "call:0", "s", *(("--server", server.url) if server is not None else ()))
        assert waiting.stderr is not None
        gone = "the process that ran it is gone, and no other has resumed it yet\n"
        assert waiting.stderr.readline() == f"call:0: {gone}"  # at the start, so that from now on it waits
        die(worker)
        assert waiting.stderr.readline() == f"s: {gone}"
        worker = place.worker()  # goes on with it
        until(lambda: place.keephold("show", "s", "--json").json["attempt"] == 2)
        die(worker)
        assert waiting.stderr.readline() == f"s: {gone}"
        assert waiting.poll() is None
        assert place.keephold("abort", "s", "call:0").code == 0
        out, err = waiting.communicate(timeout=PATIENCE)
        assert out == "call:0: abort: Aborted by a person.\ns: abort: Aborted by a person.\n"
        assert (waiting.returncode, err) == (1, "")
