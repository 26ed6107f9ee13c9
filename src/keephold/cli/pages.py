"""The end of each command's `--help`: examples, the command's own exit codes, related commands. Only `--help` reads
them."""

from typing import NamedTuple

import click


class Page(NamedTuple):
    """Each example is a line of explanation and one of shell. Exit codes 0, 2, 130 and 141 mean the same everywhere
    and are listed only if 0 means more than success, or beside other codes."""

    examples: tuple[tuple[str, str], ...]
    see: tuple[str, ...]
    exits: tuple[tuple[int, str], ...]


def _page(*examples: tuple[str, str], see: tuple[str, ...], exits: tuple[tuple[int, str], ...] = ()) -> Page:
    return Page(examples, see, exits)


_SIGNALLED = (130, "Ctrl-C; 143 is SIGTERM")
_REFUSED = (2, "wrong usage, a wrong configuration, or another refusal")

PAGES = {
    "serve": _page(
        ("Serve the tools of the keephold.toml found here, with the dashboard:", "keephold serve"),
        ("Serve on another port, with its own store:", "keephold serve --port 9000 --store sqlite:///work.db"),
        ("Serve behind a TLS proxy on this machine, with a token of your own:",
         "KEEPHOLD_TOKEN=$(cat token) keephold serve --quiet --url https://agents.example.org"),
        see=("mcp", "top", "init", "check"),
        exits=((2, "it cannot be started"), _SIGNALLED),
    ),
    "chat": _page(
        ("Talk to a model:", "keephold chat --model anthropic:claude-sonnet-4-5"),
        ("Continue a conversation:", "keephold chat --conversation main"),
        ("Run one turn in a script, with piped input:", "git diff | keephold chat 'Review this change.'"),
        see=("acp", "conversations", "tools"),
        exits=((0, "the user left, or the last turn succeeded"), (1, "the last turn ended with an error"), _REFUSED),
    ),
    "turn": _page(
        ("Run a file of batches:", "keephold turn --conversation main < batches.jsonl"),
        ("Resume a turn whose process was killed:", "keephold turn --conversation main --resume < more.jsonl"),
        see=("tools", "ps", "wait"),
        exits=((0, "the turn has ended"), (1, "a call failed the turn"), _REFUSED, _SIGNALLED),
    ),
    "mcp": _page(
        ("Serve one client, which starts this command:", "keephold mcp --config ~/project/keephold.toml"),
        ("Print the settings for common clients:", "keephold init --snippets"),
        ("Serve several clients over HTTP:", "keephold mcp --http 8080"),
        see=("serve", "init", "tools"),
        exits=((0, "the client closed the input"), _REFUSED, _SIGNALLED),
    ),
    "acp": _page(
        ("Serve an editor, which starts this command:", "keephold acp --config ~/project/keephold.toml"),
        ("Start sessions that need no permission for tools:", "keephold acp --mode unattended"),
        see=("acp-check", "chat", "init"),
        exits=((0, "the editor closed the input"), _REFUSED, _SIGNALLED),
    ),
    "worker": _page(
        ("Run the functions of a configuration for Temporal:", "keephold worker --engine temporal"),
        ("Run at most ten calls at once:", "keephold worker --engine temporal --max-running 10"),
        see=("serve", "check", "tools"),
        exits=(_REFUSED, _SIGNALLED),
    ),
    "top": _page(
        ("Watch this project's handles:", "keephold top"),
        ("Watch the handles of a server:", "keephold top --server http://127.0.0.1:8420"),
        ("Print the handles for a script:", "keephold top --json | jq '.handles[].id'"),
        see=("ps", "show", "logs", "attach"),
    ),
    "ps": _page(
        ("List everything that has not stopped:", "keephold ps"),
        ("List handles that wait for an answer:", "keephold ps --state waiting"),
        ("List the calls of a server:", "keephold ps --server http://127.0.0.1:8420"),
        ("Print the ids of a conversation's handles, stopped ones included:",
         "keephold ps --conversation main --all --json | jq -r .id"),
        see=("top", "show", "logs", "wait"),
    ),
    "show": _page(
        ("Show the newest handle called `build`:", "keephold show build"),
        ("Show one of a certain conversation, for a script:", "keephold show build --conversation main --json"),
        ("Show the keys that resolve its waits:", "keephold show desk --keys"),
        see=("ps", "logs", "complete"),
    ),
    "logs": _page(
        ("Print the output so far:", "keephold logs build"),
        ("Print new output as well, until it stops:", "keephold logs -f build"),
        ("Print what it printed in the last ten minutes, with times:", "keephold logs -t --since 10m build"),
        ("Print the output after an offset, for a script:",
         "keephold logs build --since 4096 --json | jq -r .text"),
        ("Write a terminal's session as a recording:", "keephold logs shell --cast shell.cast"),
        see=("show", "attach", "top"),
    ),
    "conversations": _page(
        ("List all conversations:", "keephold conversations"),
        ("Print their names, for a script:", "keephold conversations --json | jq -r .id"),
        see=("ps", "chat", "forget", "revoke"),
    ),
    "requests": _page(
        ("List what waits for you, in all processes:", "keephold requests"),
        ("Print the ids of permissions, for a script:",
         "keephold requests --json | jq -r 'select(.kind == \"permission\").id'"),
        see=("allow", "deny", "send", "permissions"),
    ),
    "permissions": _page(
        ("List the decisions that hold for later calls, too:", "keephold permissions"),
        ("Ask again from the next call on:", "keephold permissions --revoke 4f3a9c12-7"),
        see=("requests", "allow", "show"),
    ),
    "allow": _page(
        ("Allow a call:", "keephold allow 4f3a9c12-7"),
        see=("requests", "deny", "permissions"),
        exits=((0, "allowed"), (2, "wrong usage, or the request is not open any more")),
    ),
    "deny": _page(
        ("Deny a call:", "keephold deny 4f3a9c12-7"),
        ("Tell the model why:", "keephold deny 4f3a9c12-7 --reason 'use the staging server'"),
        see=("requests", "allow", "permissions"),
        exits=((0, "denied"), (2, "wrong usage, or the request is not open any more")),
    ),
    "attach": _page(
        ("Take over a terminal; Ctrl-] detaches:", "keephold attach shell"),
        ("Watch only:", "keephold attach shell --read-only"),
        see=("logs", "send", "top"),
        exits=(
            (0, "detached, or the program ended well"), (1, "the program failed, or was ended"), _REFUSED, _SIGNALLED,
        ),
    ),
    "run": _page(
        ("Run a tool, and see what it prints:", "keephold run build target=app"),
        ("Call a function:", "keephold run add a=2 b=3"),
        see=("spawn", "tools", "logs"),
        exits=((0, "it succeeded"), (1, "it failed"), (2, "it was not started"), (130, "it was aborted by Ctrl-C")),
    ),
    "spawn": _page(
        ("Start a tool in the background:", "keephold spawn build target=app"),
        ("Start it under a name, and wait for its end:", "keephold spawn build target=app --id b1 --wait"),
        ("Then see what it printed:", "keephold logs b1"),
        see=("ps", "logs", "wait"),
        exits=((0, "started; with --wait: succeeded"), (1, "with --wait: it failed or was aborted"), _REFUSED),
    ),
    "send": _page(
        ("Type a line into a terminal:", "keephold send sh 'make test' --key ENTER"),
        ("Interrupt the program in a terminal:", "keephold send sh --key C-c"),
        ("Answer a question:", "keephold send deploy yes"),
        ("Answer with a secret, which is not shown:", "keephold send sudo --password"),
        ("Close the input of a command:", "keephold send count --close"),
        see=("attach", "show", "abort"),
        exits=((0, "sent"), (1, "refused by the handle: it has stopped, the answer does not fit …"), _REFUSED),
    ),
    "abort": _page(
        ("Abort a handle:", "keephold abort build"),
        ("Abort all handles of a conversation:", "keephold abort --all-in main"),
        see=("ps", "send", "wait"),
        exits=((0, "all of them have stopped"), (1, "one of them could not be aborted"), _REFUSED),
    ),
    "retry": _page(
        ("Repeat a call that was stopped with code crash_loop:", "keephold retry deploy"),
        ("Wait for the new handle:", "keephold wait deploy"),
        see=("show", "abort", "wait"),
    ),
    "wait": _page(
        ("Wait until both have stopped:", "keephold wait build test"),
        ("Wait for one of them, at most a minute:", "keephold wait --any --timeout 60 build test"),
        ("Use the result in a script:", "keephold wait build && echo built"),
        see=("ps", "logs", "complete"),
        exits=((0, "all succeeded"), (1, "one failed or was aborted"), _REFUSED, (124, "the timeout expired first")),
    ),
    "complete": _page(
        ("Complete a call with a result:", "keephold complete hf1.KEY --ok '{\"approved_by\": \"Ada\"}'"),
        ("Fail a call:", "keephold complete hf1.KEY --error rejected 'too expensive'"),
        ("Read the key from a private file:", "keephold complete - --cancelled < key"),
        see=("show", "wait", "revoke"),
        exits=(
            (0, "accepted"), _REFUSED, (3, "already resolved"), (4, "unknown or revoked"),
        ),
    ),
    "logout": _page(
        ("Log all browsers out of the dashboard:", "keephold logout"),
        ("End one session, by the id that the page Sessions shows:", "keephold logout 5f0c1a2b"),
        see=("serve",),
    ),
    "revoke": _page(
        ("Invalidate the open keys of a conversation:", "keephold revoke main"),
        see=("complete", "show", "forget"),
    ),
    "forget": _page(
        ("Delete the transcript of a conversation:", "keephold forget main"),
        ("Delete it without confirmation, in a script:", "keephold forget main --yes"),
        see=("conversations", "gc"),
        exits=((0, "deleted"), (1, "not confirmed"), _REFUSED),
    ),
    "store": _page(
        ("Show how large the store is, and which processes use it:", "keephold store info"),
        ("Check that it is whole:", "keephold store check"),
        ("Copy it into one file, while a server writes:", "keephold store backup monday.tar"),
        ("Make a store from a copy:", "keephold store restore monday.tar --store sqlite:///copy.db"),
        ("Upgrade it after a new version was installed:", "keephold store migrate"),
        ("Sign new keys with a new secret:", "keephold store rotate"),
        ("Read what was archived before it was deleted:", "keephold store archive archive --since 30d"),
        see=("gc", "forget", "serve"),
        exits=((0, "done, and no problems"), (1, "`check` found problems"), _REFUSED),
    ),
    "gc": _page(
        ("Show what would be deleted:", "keephold gc --dry-run"),
        ("Delete what is older than a month, and shrink the store:", "keephold gc --before 30d --vacuum"),
        see=("store", "forget"),
    ),
    "init": _page(
        ("Write a configuration here:", "keephold init"),
        ("Write one into another directory:", "keephold init ~/project"),
        ("Print the settings for clients and editors:", "keephold init --snippets"),
        see=("check", "serve", "mcp", "acp"),
        exits=((0, "written, or printed"), (2, "the file exists already, or cannot be written")),
    ),
    "trust": _page(
        ("Trust the keephold.toml of this directory, after you have read it:", "keephold trust"),
        ("Trust that of another directory:", "keephold trust ~/project"),
        ("List the trusted files, and those that have changed since:", "keephold trust --list"),
        see=("untrust", "check", "init"),
    ),
    "untrust": _page(
        ("Remove the keephold.toml of this directory from the trusted files:", "keephold untrust"),
        ("Remove a file that was deleted:", "keephold untrust ~/project"),
        see=("trust",),
    ),
    "check": _page(
        ("Check the configuration of this directory:", "keephold check"),
        ("Print the problems, for a script:", "keephold check --json | jq -r '.problems[]'"),
        see=("init", "trust", "tools", "serve"),
        exits=((0, "no problems"), (1, "problems were found"), (2, "wrong usage")),
    ),
    "mcp-login": _page(
        ("Log in to the server of the table [mcp.servers.tracker]:", "keephold mcp-login tracker"),
        ("Print the address only, to open it elsewhere:", "keephold mcp-login tracker --no-browser"),
        ("Remove the stored login:", "keephold mcp-login tracker --remove"),
        see=("check", "tools", "logout"),
    ),
    "bench": _page(
        ("Measure the disk of the configured store:", "keephold bench"),
        ("Measure another disk:", "keephold bench --store sqlite:///scratch/work.db"),
        ("Print how long a durable step takes, for a script:",
         "keephold bench --json | jq '.figures[] | select(.name == \"step\").keephold'"),
        see=("check", "top"),
        exits=(_REFUSED, _SIGNALLED),
    ),
    "tools": _page(
        ("List the tools that a model may call:", "keephold tools"),
        ("Print their schemas as a provider takes them:", "keephold tools --dialect openai-strict"),
        see=("check", "turn"),
    ),
    "acp-check": _page(
        ("Check an agent:", "keephold acp-check keephold acp"),
        ("Check one topic, with more time:", "keephold acp-check --only cancelling --timeout 300 my-agent --acp"),
        see=("acp",),
        exits=(
            (0, "no check failed"),
            (1, "a check failed that the protocol requires (MUST)"),
            (2, "wrong usage, or nothing was checked: the agent did not run, failed `initialize` or requires a login"),
            (3, "only checks failed that clients rely on (SHOULD)"),
        ),
    ),
    "completion": _page(
        ("Complete in bash; put this in ~/.bashrc:", 'eval "$(keephold completion bash)"'),
        ("Complete in zsh; put this in ~/.zshrc:", 'eval "$(keephold completion zsh)"'),
        ("Complete in fish:", "keephold completion fish > ~/.config/fish/completions/keephold.fish"),
        see=("help",),
    ),
    "help": _page(("Explain a command:", "keephold help wait"), see=("completion",)),
}  # fmt: skip


def write_page(name: str, formatter: click.HelpFormatter) -> None:
    """Write the end of a command's help."""
    page = PAGES[name]
    with formatter.section("Examples"):
        for meaning, line in page.examples:
            formatter.write(f"{'':{formatter.current_indent}}{meaning}\n{'':{formatter.current_indent + 4}}{line}\n")
    if page.exits:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in page.exits])
    with formatter.section("See also"):
        formatter.write_text(", ".join(f"keephold {other}" for other in page.see))
