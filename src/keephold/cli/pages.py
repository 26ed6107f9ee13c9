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
            ("Serve the tools of the keephold.toml found here, with the dashboard:", "keephold serve"),
            ("On another port, with a store of its own:", "keephold serve --port 9000 --store sqlite:///work.db"),
            ("Behind a proxy on this machine that does TLS, with a token of your own:",
             "KEEPHOLD_TOKEN=$(cat token) keephold serve --quiet --url https://agents.example.org"),
        ),
        ("mcp", "top", "init", "check"),
        ((2, "it cannot be started"), _SIGNALLED),
    ),
    "chat": Page(
        (
            ("Talk to a model:", "keephold chat --model anthropic:claude-sonnet-4-5"),
            ("Go on with a conversation:", "keephold chat --conversation main"),
            ("One turn in a script, with what is piped in:", "git diff | keephold chat 'Review this change.'"),
        ),
        ("acp", "conversations", "tools"),
        ((0, "left by the person, or the last turn went well"), (1, "the last turn ended with an error"), _REFUSED),
    ),
    "turn": Page(
        (
            ("Run a file of batches:", "keephold turn --conversation main < batches.jsonl"),
            ("Go on with a turn whose process was killed:", "keephold turn --conversation main --resume < more.jsonl"),
        ),
        ("tools", "ps", "wait"),
        ((0, "the turn has ended"), (1, "a call failed the turn"), _REFUSED, _SIGNALLED),
    ),
    "mcp": Page(
        (
            ("What a client is told to start:", "keephold mcp --config ~/project/keephold.toml"),
            ("The snippets for common clients:", "keephold init --snippets"),
            ("Over HTTP, for several clients:", "keephold mcp --http 8080"),
        ),
        ("serve", "init", "tools"),
        ((0, "the client has closed the input"), _REFUSED, _SIGNALLED),
    ),
    "acp": Page(
        (
            ("What an editor is told to start:", "keephold acp --config ~/project/keephold.toml"),
            ("Sessions that need no permission for tools:", "keephold acp --mode unattended"),
        ),
        ("acp-check", "chat", "init"),
        ((0, "the editor has closed the input"), _REFUSED, _SIGNALLED),
    ),
    "top": Page(
        (
            ("Watch this project's handles:", "keephold top"),
            ("Watch those of a server:", "keephold top --server http://127.0.0.1:8420"),
            ("What would be shown now, for a script:", "keephold top --json | jq '.handles[].id'"),
        ),
        ("ps", "show", "logs", "attach"),
    ),
    "ps": Page(
        (
            ("All that has not stopped:", "keephold ps"),
            ("What waits for an answer:", "keephold ps --state waiting"),
            ("What goes on at a server:", "keephold ps --server http://127.0.0.1:8420"),
            ("The ids of a conversation's handles, also of those that have stopped:",
             "keephold ps --conversation main --all --json | jq -r .id"),
        ),
        ("top", "show", "logs", "wait"),
    ),
    "show": Page(
        (
            ("Everything of the newest handle called `build`:", "keephold show build"),
            ("Of one in a certain conversation, for a script:", "keephold show build --conversation main --json"),
            ("With the keys that its waits can be resolved by:", "keephold show desk --keys"),
        ),
        ("ps", "logs", "complete"),
    ),
    "logs": Page(
        (
            ("What it has printed:", "keephold logs build"),
            ("And what it goes on to print, until it stops:", "keephold logs -f build"),
            ("What it has printed since, for a script:", "keephold logs build --since 4096 --json | jq -r .text"),
            ("A terminal's session as a recording:", "keephold logs shell --cast shell.cast"),
        ),
        ("show", "attach", "top"),
    ),
    "conversations": Page(
        (
            ("All of them:", "keephold conversations"),
            ("Their names, for a script:", "keephold conversations --json | jq -r .id"),
        ),
        ("ps", "chat", "forget", "revoke"),
    ),
    "attach": Page(
        (
            ("Take over a terminal; Ctrl-] gives it back:", "keephold attach shell"),
            ("Only watch:", "keephold attach shell --read-only"),
        ),
        ("logs", "send", "top"),
        ((0, "detached, or the program ended well"), (1, "the program failed, or was ended"), _REFUSED, _SIGNALLED),
    ),
    "send": Page(
        (
            ("Type a line into a terminal:", "keephold send sh 'make test' --key ENTER"),
            ("Interrupt what runs there:", "keephold send sh --key C-c"),
            ("Answer a question:", "keephold send deploy yes"),
            ("Answer with a secret, which is not shown:", "keephold send sudo --password"),
            ("Close the input of a command that reads it to its end:", "keephold send count --close"),
        ),
        ("attach", "show", "abort"),
        ((0, "sent"), (1, "the handle did not take it: it has stopped, the answer does not fit …"), _REFUSED),
    ),
    "abort": Page(
        (
            ("End a handle:", "keephold abort build"),
            ("End all handles of a conversation:", "keephold abort --all-in main"),
        ),
        ("ps", "send", "wait"),
        ((0, "ended, or it had ended before"), (1, "one of them could not be ended"), _REFUSED),
    ),
    "wait": Page(
        (
            ("Until both have stopped:", "keephold wait build test"),
            ("Until one of them has, for at most a minute:", "keephold wait --any --timeout 60 build test"),
            ("In a script:", "keephold wait build && echo built"),
        ),
        ("ps", "logs", "complete"),
        ((0, "done, and all are well"), (1, "done; one failed or was aborted"), _REFUSED, (124, "the time was up")),
    ),
    "complete": Page(
        (
            ("It went well:", "keephold complete hf1.KEY --ok '{\"approved_by\": \"Ada\"}'"),
            ("It failed:", "keephold complete hf1.KEY --error rejected 'too expensive'"),
            ("With the key from a file, which no other user can read:", "keephold complete - --cancelled < key"),
        ),
        ("show", "wait", "revoke"),
        (
            (0, "accepted"), _REFUSED, (3, "already resolved"), (4, "unknown or revoked"),
        ),
    ),
    "revoke": Page(
        (("Let none of a conversation's open keys be of use any more:", "keephold revoke main"),),
        ("complete", "show", "forget"),
    ),
    "forget": Page(
        (
            ("Let go of what was said in a conversation:", "keephold forget main"),
            ("In a script, which cannot be asked:", "keephold forget main --yes"),
        ),
        ("conversations", "gc"),
        ((0, "it is gone"), (1, "asked whether to, the answer was no"), _REFUSED),
    ),
    "gc": Page(
        (
            ("What would be let go of:", "keephold gc --dry-run"),
            ("Let go of what is older than a month, and make the file smaller:", "keephold gc --before 30d --vacuum"),
        ),
        ("ps", "forget"),
    ),
    "init": Page(
        (
            ("Begin here:", "keephold init"),
            ("Begin in another directory:", "keephold init ~/project"),
            ("What clients and editors are told:", "keephold init --snippets"),
        ),
        ("check", "serve", "mcp", "acp"),
        ((0, "written, or printed"), (2, "one is there already, or it cannot be written")),
    ),
    "check": Page(
        (
            ("The configuration found from here:", "keephold check"),
            ("Its problems, for a script:", "keephold check --json | jq -r '.problems[]'"),
        ),
        ("init", "tools", "serve"),
        ((0, "all is well"), (1, "there are problems"), (2, "wrong usage")),
    ),
    "bench": Page(
        (
            ("On the disk of the store that is configured here:", "keephold bench"),
            ("On another disk:", "keephold bench --store sqlite:///scratch/work.db"),
            ("How long a durable step takes, for a script:",
             "keephold bench --json | jq '.figures[] | select(.name == \"step\").keephold'"),
        ),
        ("check", "top"),
        (_REFUSED, _SIGNALLED),
    ),
    "tools": Page(
        (
            ("What a model may call:", "keephold tools"),
            ("With schemas as a provider takes them:", "keephold tools --dialect openai-strict"),
        ),
        ("check", "turn"),
    ),
    "acp-check": Page(
        (
            ("Check an agent:", "keephold acp-check keephold acp"),
            ("One topic, with more time:", "keephold acp-check --only cancelling --timeout 300 my-agent --acp"),
        ),
        ("acp",),
        ((0, "all checks passed"), (1, "a check failed"), (2, "wrong usage, or the agent could not be started")),
    ),
    "completion": Page(
        (
            ("bash, for this shell; in ~/.bashrc for all:", 'eval "$(keephold completion bash)"'),
            ("zsh, the same:", 'eval "$(keephold completion zsh)"'),
            ("fish, for good:", "keephold completion fish > ~/.config/fish/completions/keephold.fish"),
        ),
        ("help",),
    ),
    "help": Page((("Explain a command:", "keephold help wait"),), ("completion",)),
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
        formatter.write_text(", ".join(f"keephold {other}" for other in page.see))
