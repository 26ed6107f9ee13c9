"""Operations on a running system for users and scripts: look, send, answer, abort, wait, complete.

The operations take and return JSON. `Control` performs them in this process, `RemoteControl` over HTTP. The command
line, the dashboard and `/api` all use them.
"""
