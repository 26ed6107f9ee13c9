"""Processes that outlive the runtime that started them (R7, `on_crash = "keep"`).

A keeper is one small process for a store, a user and a host. It is the parent of kept processes, because only a parent
learns how they end, and always does their input and output. A runtime starts it with the first kept call (`client.py`),
talks to it over a Unix socket and a page of shared memory (`protocol.py`), and follows the output in the spool, where
the keeper writes it.

- `client.py`: the runtime's end. `children.py`: a kept process, as a runtime sees it, with the methods of `Process` and
  `Pty`.
- `server.py`: the keeper. `kept.py`: one kept process there. `files.py`: its output file.
- `record.py`, `times.py`: the files beside the output.

Unless a runtime takes a process back in time, its keeper ends it. If the keeper dies, its guard does.
"""
