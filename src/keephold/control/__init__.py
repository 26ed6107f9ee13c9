"""What people and scripts may ask of a system that runs: look, send, answer, abort, wait, complete.

One set of operations with one set of words, in JSON: `Control` in this process, `RemoteControl` over HTTP. The command
line, the dashboard and `/api` all speak it.
"""
