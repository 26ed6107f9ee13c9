"""What a command's `--help` ends with: examples, exit codes that are the command's own, and what else to look at.

It is here and not with the commands, because only `--help` reads it, and side by side the pages stay alike.
"""

from typing import NamedTuple

import click


class Page(NamedTuple):
    """`examples` are a line of explanation and one of shell each. Exit codes 0, 2, 130 and 141 mean the same everywhere
    and are listed where 0 says more than that all went well, or where there are others."""

    examples: tuple[tuple[str, str], ...]
    see: tuple[str, ...]
    exits: tuple[tuple[int, str], ...] = ()


_SIGNALLED = (130, "Ctrl-C; 143 is SIGTERM")
_REFUSED = (2, "wrong usage, a wrong configuration, or anything else that was refused")

PAGES = {
    "serve": Page(
        (
            ("Serve the tools of the holdfast.toml found here, with the dashboard:", "holdfast serve"),
            ("On another port, with a store of its own:", "holdfast serve --port 9000 --store sqlite:///work.db"),
            ("Behind a proxy on this machine that does TLS, with a token of your own:",
             "HOLDFAST_TOKEN=$(cat token) holdfast serve --quiet --url https://agents.example.org"),
        ),
        ("mcp", "top", "init", "check"),
        ((2, "it cannot be started"), _SIGNALLED),
    ),
    "chat": Page(
        (
            ("Talk to a model:", "holdfast chat --model anthropic:claude-sonnet-4-5"),
            ("Go on with a conversation:", "holdfast chat --conversation main"),
            ("One turn in a script, with what is piped in:", "git diff | holdfast chat 'Review this change.'"),
        ),
        ("acp", "conversations", "tools"),
        ((0, "left by the person, or the last turn went well"), (1, "the last turn ended with an error"), _REFUSED),
    ),
    "turn": Page(
        (
            ("Run a file of batches:", "holdfast turn --conversation main < batches.jsonl"),
            ("Go on with a turn whose process was killed:", "holdfast turn --conversation main --resume < more.jsonl"),
        ),
        ("tools", "ps", "wait"),
        ((0, "the turn has ended"), (1, "a call failed the turn"), _REFUSED, _SIGNALLED),
    ),
    "mcp": Page(
        (
            ("What a client is told to start:", "holdfast mcp --config ~/project/holdfast.toml"),
            ("The snippets for common clients:", "holdfast init --snippets"),
            ("Over HTTP, for several clients:", "holdfast mcp --http 8080"),
        ),
        ("serve", "init", "tools"),
        ((0, "the client has closed the input"), _REFUSED, _SIGNALLED),
    ),
    "acp": Page(
        (
            ("What an editor is told to start:", "holdfast acp --config ~/project/holdfast.toml"),
            ("Sessions that need no permission for tools:", "holdfast acp --mode unattended"),
        ),
        ("acp-check", "chat", "init"),
        ((0, "the editor has closed the input"), _REFUSED, _SIGNALLED),
    ),
    "top": Page(
        (
            ("Watch this project's handles:", "holdfast top"),
            ("Watch those of a server:", "holdfast top --server http://127.0.0.1:8420"),
            ("What would be shown now, for a script:", "holdfast top --json | jq '.handles[].id'"),
        ),
        ("ps", "show", "logs", "attach"),
    ),
    "ps": Page(
        (
            ("All that has not stopped:", "holdfast ps"),
            ("What waits for an answer:", "holdfast ps --state waiting"),
            ("What goes on at a server:", "holdfast ps --server http://127.0.0.1:8420"),
            ("The ids of a conversation's handles, also of those that have stopped:",
             "holdfast ps --conversation main --all --json | jq -r .id"),
        ),
        ("top", "show", "logs", "wait"),
    ),
    "show": Page(
        (
            ("Everything of the newest handle called `build`:", "holdfast show build"),
            ("Of one in a certain conversation, for a script:", "holdfast show build --conversation main --json"),
            ("With the keys that its waits can be resolved by:", "holdfast show desk --keys"),
        ),
        ("ps", "logs", "complete"),
    ),
    "logs": Page(
        (
            ("What it has printed:", "holdfast logs build"),
            ("And what it goes on to print, until it stops:", "holdfast logs -f build"),
            ("What it has printed since, for a script:", "holdfast logs build --since 4096 --json | jq -r .text"),
            ("A terminal's session as a recording:", "holdfast logs shell --cast shell.cast"),
        ),
        ("show", "attach", "top"),
    ),
    "conversations": Page(
        (
            ("All of them:", "holdfast conversations"),
            ("Their names, for a script:", "holdfast conversations --json | jq -r .id"),
        ),
        ("ps", "chat", "forget", "revoke"),
    ),
    "attach": Page(
        (
            ("Take over a terminal; Ctrl-] gives it back:", "holdfast attach shell"),
            ("Only watch:", "holdfast attach shell --read-only"),
        ),
        ("logs", "send", "top"),
        ((0, "detached, or the program ended well"), (1, "the program failed, or was ended"), _REFUSED, _SIGNALLED),
    ),
    "send": Page(
        (
            ("Type a line into a terminal:", "holdfast send sh 'make test' --key ENTER"),
            ("Interrupt what runs there:", "holdfast send sh --key C-c"),
            ("Answer a question:", "holdfast send deploy yes"),
            ("Answer with a secret, which is not shown:", "holdfast send sudo --password"),
            ("Close the input of a command that reads it to its end:", "holdfast send count --close"),
        ),
        ("attach", "show", "abort"),
        ((0, "sent"), (1, "the handle did not take it: it has stopped, the answer does not fit …"), _REFUSED),
    ),
    "abort": Page(
        (
            ("End a handle:", "holdfast abort build"),
            ("End all handles of a conversation:", "holdfast abort --all-in main"),
        ),
        ("ps", "send", "wait"),
        ((0, "ended, or it had ended before"), (1, "one of them could not be ended"), _REFUSED),
    ),
    "wait": Page(
        (
            ("Until both have stopped:", "holdfast wait build test"),
            ("Until one of them has, for at most a minute:", "holdfast wait --any --timeout 60 build test"),
            ("In a script:", "holdfast wait build && echo built"),
        ),
        ("ps", "logs", "complete"),
        ((0, "done, and all are well"), (1, "done; one failed or was aborted"), _REFUSED, (124, "the time was up")),
    ),
    "complete": Page(
        (
            ("It went well:", "holdfast complete hf1.KEY --ok '{\"approved_by\": \"Ada\"}'"),
            ("It failed:", "holdfast complete hf1.KEY --error rejected 'too expensive'"),
            ("With the key from a file, which no other user can read:", "holdfast complete - --cancelled < key"),
        ),
        ("show", "wait", "revoke"),
        (
            (0, "accepted"), _REFUSED, (3, "already resolved"), (4, "unknown or revoked"),
        ),
    ),
    "revoke": Page(
        (("Let none of a conversation's open keys be of use any more:", "holdfast revoke main"),),
        ("complete", "show", "forget"),
    ),
    "forget": Page(
        (
            ("Let go of what was said in a conversation:", "holdfast forget main"),
            ("In a script, which cannot be asked:", "holdfast forget main --yes"),
        ),
        ("conversations", "gc"),
        ((0, "it is gone"), (1, "asked whether to, the answer was no"), _REFUSED),
    ),
    "gc": Page(
        (
            ("What would be let go of:", "holdfast gc --dry-run"),
            ("Let go of what is older than a month, and make the file smaller:", "holdfast gc --before 30d --vacuum"),
        ),
        ("ps", "forget"),
    ),
    "init": Page(
        (
            ("Begin here:", "holdfast init"),
            ("Begin in another directory:", "holdfast init ~/project"),
            ("What clients and editors are told:", "holdfast init --snippets"),
        ),
        ("check", "serve", "mcp", "acp"),
        ((0, "written, or printed"), (2, "one is there already, or it cannot be written")),
    ),
    "check": Page(
        (
            ("The configuration found from here:", "holdfast check"),
            ("Its problems, for a script:", "holdfast check --json | jq -r '.problems[]'"),
        ),
        ("init", "tools", "serve"),
        ((0, "all is well"), (1, "there are problems"), (2, "wrong usage")),
    ),
    "bench": Page(
        (
            ("On the disk of the store that is configured here:", "holdfast bench"),
            ("On another disk:", "holdfast bench --store sqlite:///scratch/work.db"),
            ("How long a durable step takes, for a script:",
             "holdfast bench --json | jq '.figures[] | select(.name == \"step\").holdfast'"),
        ),
        ("check", "top"),
        (_REFUSED, _SIGNALLED),
    ),
    "tools": Page(
        (
            ("What a model may call:", "holdfast tools"),
            ("With schemas as a provider takes them:", "holdfast tools --dialect openai-strict"),
        ),
        ("check", "turn"),
    ),
    "acp-check": Page(
        (
            ("Check an agent:", "holdfast acp-check holdfast acp"),
            ("One topic, with more time:", "holdfast acp-check --only cancelling --timeout 300 my-agent --acp"),
        ),
        ("acp",),
        ((0, "all checks passed"), (1, "a check failed"), (2, "wrong usage, or the agent could not be started")),
    ),
    "completion": Page(
        (
            ("bash, for this shell; in ~/.bashrc for all:", 'eval "$(holdfast completion bash)"'),
            ("zsh, the same:", 'eval "$(holdfast completion zsh)"'),
            ("fish, for good:", "holdfast completion fish > ~/.config/fish/completions/holdfast.fish"),
        ),
        ("help",),
    ),
    "help": Page((("Explain a command:", "holdfast help wait"),), ("completion",)),
}  # fmt: skip


def write_page(name: str, formatter: click.HelpFormatter) -> None:
    """The end of a command's help."""
    page = PAGES.get(name)
    if page is None:
        return
    with formatter.section("Examples"):
        for meaning, line in page.examples:
            formatter.write(f"{'':{formatter.current_indent}}{meaning}\n{'':{formatter.current_indent + 4}}{line}\n")
    if page.exits:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in page.exits])
    with formatter.section("See also"):
        formatter.write_text(", ".join(f"holdfast {other}" for other in page.see))
