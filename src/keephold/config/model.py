"""The tables of `keephold.toml` (F): every key, its type and its default; and which settings have no effect.

Types are strict: a setting that is silently converted is often a misunderstanding. Rules that tie several keys together
are in `rules`; the sentences for mistakes are in `explain`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr

from keephold.config.source import TOOLS, KeyPath, Source
from keephold.config.trust import state_directory
from keephold.config.values import (
    Milliseconds,
    Seconds,
    Size,
    VariableNames,
    command_words,
    fixed_answer,
    host_pattern,
    http_url,
    mime_or_schema,
    provider_url,
    question_target,
    server_address,
    store_address,
    terminal_name,
    tls_files,
    tool_hints,
    tool_prefix,
)
from keephold.handles.patterns import compiled
from keephold.limits import Limits
from keephold.store.rows import CARRIERS, Carrier, Status
from keephold.tools.base import (
    ACTIONS,
    Action,
    NotificationPolicy,
    OnCrash,
    OnTurnEnd,
    OutputPolicy,
    OutputView,
    QuestionPolicy,
    RunMode,
    Window,
)
from keephold.tools.program import MAX_COLS, MAX_ROWS

if TYPE_CHECKING:
    from keephold.tools.remote.server import McpServer


Engine = Literal["temporal"]


class Table(BaseModel):
    """A table of the file. A key it does not know is an error (L4)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    def written(self) -> dict[str, Any]:
        """Return only the keys that the file sets."""
        return {key: getattr(self, key) for key in self.model_fields_set}


def _pattern(source: str) -> str:
    """Refuse a pattern that cannot be compiled when the file is read."""
    try:
        compiled(source)
    except ValueError as error:
        raise ValueError(f"must be a regular expression (RE2 syntax; {error})") from error
    return source


class NotificationSettings(Table):
    """`[….spawn.notifications]` (N2, N4)."""

    on_success: bool = True
    on_failure: bool = True
    on_waiting: bool = True
    on_ready: bool = True
    on_content: bool = False
    deliver: Annotated[list[Carrier], Field(min_length=1)] = list(CARRIERS)

    def policy(self, under: NotificationPolicy) -> NotificationPolicy:
        deliver = {"deliver": tuple(self.deliver)} if "deliver" in self.model_fields_set else {}
        return replace(under, **self.written() | deliver)


def _provider(model: str) -> str:
    return model.partition(":")[0]


class AssistantSettings(Table):
    """A model and how it is asked: every `assistant` table (G1, Q2, T2)."""

    model: str | None = None
    base_url: Annotated[str | None, BeforeValidator(provider_url)] = None
    api_key_env: str | None = None
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    timeout_secs: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 600
    strict: bool = False
    settings: dict[str, Any] = {}

    def under(self, over: Mapping[str, Any]) -> "AssistantSettings":
        """Return these settings with others over them. The address and the key are dropped if the provider differs."""
        mine, wanted = self.written(), over.get("model")
        if isinstance(wanted, str) and _provider(wanted) != _provider(self.model or ""):
            mine = {key: value for key, value in mine.items() if key not in ("base_url", "api_key_env")}
        return AssistantSettings.model_validate({**mine, **over})


class LifecycleSettings(Table):
    """`[….spawn.lifecycle]` (T1, T2)."""

    on_turn_end: OnTurnEnd = "inquire"
    timeout_secs: Seconds = 300
    assistant: AssistantSettings = AssistantSettings()


class SpawnSettings(Table):
    """`[….spawn]`: whether calls of the tool are handles that the model sees, and how they behave."""

    stateful: bool | None = None
    actions: list[Action] | None = None
    settle_ms: Milliseconds = 100
    settle_max_ms: Milliseconds = 1000
    abort_grace_ms: Milliseconds = 2000
    ready: Annotated[str, AfterValidator(_pattern)] | None = None
    stdin: bool = False
    input: Literal["line", "raw"] | None = None
    priority: int = 0
    notifications: NotificationSettings = NotificationSettings()
    lifecycle: LifecycleSettings = LifecycleSettings()


class TerminalSettings(Table):
    """`[….terminal]`: the initial terminal of a program with `source = "terminal"`."""

    rows: Annotated[int, Field(ge=1, le=MAX_ROWS)] = 24
    cols: Annotated[int, Field(ge=1, le=MAX_COLS)] = 80
    term: Annotated[str, BeforeValidator(terminal_name)] = "xterm-256color"


class ViewCaps(Table):
    """The caps of a view (O1); what is left out comes from the table around it."""

    limit: Annotated[int, Field(ge=1)] | None = None
    mode: Literal["bytes", "tokens"] | None = None
    max_lines: Annotated[int, Field(ge=1)] | None = None
    window: Window | None = None

    def over(self, view: OutputView) -> OutputView:
        """Return the view with these caps in place of its own."""
        caps = {key: getattr(self, key) for key in ViewCaps.model_fields}
        return replace(view, **{key: cap for key, cap in caps.items() if cap is not None})


class OutputSettings(ViewCaps):
    """`output`: the caps of both views, and of one each in its sub-tables (O2); how much is kept (O5)."""

    max_output: Size = 100 << 20
    dispatch: ViewCaps = ViewCaps()
    model: ViewCaps = ViewCaps()

    def policy(self, window: Window) -> OutputPolicy:
        """Return the caps of the tool's output; `window` is the default window."""
        shared = self.over(OutputView(window=window))
        return OutputPolicy(
            dispatch=self.dispatch.over(shared),
            model=self.model.over(shared),
            max_output=self.max_output,
        )


class RetrySettings(Table):
    """`retry` (R5)."""

    policy: Literal["never", "safe", "idempotent"] = "never"
    max_attempts: Annotated[int, Field(ge=1)] = 3
    base_delay_ms: Milliseconds = 200
    max_delay_ms: Milliseconds = 5000


class QuestionSettings(Table):
    """`[….questions.<id>]` (Q2, Q4). An `answer` that is written, even `false`, is fixed."""

    target: Annotated[Literal["user", "assistant"] | dict[str, Any], BeforeValidator(question_target)] = "user"
    answer: Annotated[bool | str | None, BeforeValidator(fixed_answer)] = None
    exclusive: bool = False

    def policy(self) -> QuestionPolicy:
        return QuestionPolicy(
            target="assistant" if isinstance(self.target, dict) else self.target,
            answered="answer" in self.model_fields_set,
            answer=self.answer,
            exclusive=self.exclusive,
            assistant=self.target if isinstance(self.target, dict) else {},
        )


class ToolSettings(Table):
    """`[conversation.tools.<name>]`, with the defaults of `"*"` merged in."""

    source: Literal["local", "terminal", "python", "mcp", "builtin"] | None = None
    command: Any = None
    function: str | None = None
    server: str | None = None
    tool: str | None = None
    description: str = ""
    summary: str | None = None
    examples: list[str] = []
    run: RunMode = "ask"
    run_actions: dict[Action, RunMode] = {}
    result: RunMode = "unattended"
    timeout_secs: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    cwd: str = "."
    env: dict[str, str] = {}
    pass_env: VariableNames = []
    wire: bool = False
    returns: Annotated[str | dict[str, Any] | None, BeforeValidator(mime_or_schema)] = None
    hints: Annotated[dict[str, Any], BeforeValidator(tool_hints)] = {}
    scheduling: Literal["parallel", "serial"] = "parallel"
    resources: list[str] = []
    max_running: Annotated[int, Field(ge=1)] | None = None
    retry: RetrySettings = RetrySettings()
    engine: Engine | None = None
    on_crash: OnCrash = "fail"
    keep_secs: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3600
    output: OutputSettings = OutputSettings()
    options: dict[str, Any] = {}
    parameters: dict[str, dict[str, Any]] = {}
    questions: dict[str, QuestionSettings] = {}
    spawn: SpawnSettings = SpawnSettings()
    terminal: TerminalSettings = TerminalSettings()

    @property
    def runs_command(self) -> bool:
        """Whether the tool is a program, on pipes or in a terminal."""
        return self.source in ("local", "terminal")

    @property
    def input(self) -> Literal["line", "raw"]:
        """How `apply` sends a text (C6)."""
        return self.spawn.input or ("raw" if self.source == "terminal" else "line")

    @property
    def actions(self) -> tuple[Action, ...]:
        """The action set (C2), in the order schemas list it. Empty: only ever called one-shot."""
        wanted: list[Action] = []
        if self.spawn.actions is not None:
            wanted = self.spawn.actions
        elif self.source == "terminal" or (self.source == "mcp" and self.spawn.stateful):
            wanted = [] if self.spawn.stateful is False else [*ACTIONS]
        elif self.spawn.stateful:
            wanted = ["spawn", "fetch", "abort"]
            if self.spawn.stdin or self.wire:
                wanted.append("apply")
        return tuple(action for action in ACTIONS if action in wanted)

    def parameters_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the tool's own arguments; `required = true` of a parameter moves to the object."""
        properties = {name: dict(table) for name, table in self.parameters.items()}
        required = [name for name, table in properties.items() if table.get("required") is True]
        for table in properties.values():
            if isinstance(table.get("required"), bool):
                del table["required"]
        return {"type": "object", "properties": properties} | ({"required": required} if required else {})


class InquirySettings(Table):
    """`[conversation.inquiry]`: the model for side questions, and its timeout (Q7, T2)."""

    assistant: AssistantSettings = AssistantSettings()
    timeout_secs: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 120


class ConversationSettings(Table):
    """`[conversation]`."""

    detached: Literal["deny", "defaults", "auto"] = "deny"
    actions: Literal["shared", "per_tool"] | None = None
    assistant: AssistantSettings = AssistantSettings()
    instructions: str = ""
    max_requests: Annotated[int, Field(ge=1)] = 100
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_cost: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    context_tokens: Annotated[int, Field(ge=1000)] | None = None
    inquiry: InquirySettings = InquirySettings()
    tools: dict[str, ToolSettings] = {}


class AgentSettings(Table):
    """`[agents.<id>]` (G2): a model or a program that speaks ACP, which conversations can call as a tool.

    Keys that `assistant` leaves out come from `[conversation.assistant]`.
    """

    description: str = ""
    model: str | None = None
    assistant: AssistantSettings = AssistantSettings()
    command: Annotated[str | list[str] | None, BeforeValidator(command_words)] = None
    env: dict[str, str] = {}
    pass_env: VariableNames = []
    cwd: str = "."
    instructions: str = ""
    tools: list[str] = ["*"]
    run: RunMode = "ask"
    max_requests: Annotated[int, Field(ge=1)] = 100
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_cost: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    context_tokens: Annotated[int, Field(ge=1000)] | None = None
    timeout_secs: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max_running: Annotated[int, Field(ge=1)] | None = None
    on_turn_end: OnTurnEnd = "inquire"

    def assistant_over(self, conversation: AssistantSettings) -> AssistantSettings:
        """Return the agent's own settings over those of conversations."""
        return conversation.under(self.assistant.written() | ({} if self.model is None else {"model": self.model}))


class LimitSettings(Table):
    """`[limits]` (K6)."""

    arguments_bytes: Size = Limits().arguments_bytes
    line_bytes: Size = Limits().line_bytes
    batch_calls: Annotated[int, Field(ge=1)] = Limits().batch_calls
    live_handles: Annotated[int, Field(ge=1)] = Limits().live_handles
    open_questions: Annotated[int, Field(ge=1)] = Limits().open_questions
    nesting: Annotated[int, Field(ge=1)] = Limits().nesting
    disk: Size = Limits().disk
    agent_depth: Annotated[int, Field(ge=0)] = Limits().agent_depth

    def policy(self) -> Limits:
        return Limits(**self.model_dump())


class StoreSettings(Table):
    """`[store]`. None: the default of the command or runtime that opens it (Y1, S5)."""

    url: Annotated[str, BeforeValidator(store_address)] | None = None
    retention_secs: Seconds | None = None
    archive: str | None = None


class WaitRetention(Table):
    """`[wait_handles.retention_secs]`: by status; None is `[store] retention_secs`."""

    completed: Seconds | None = None
    failed: Seconds | None = None
    timeout: Seconds | None = None


class WaitHandleSettings(Table):
    """`[wait_handles]` (W8): a shorter retention for settled handles, and their archive."""

    retention_secs: WaitRetention = WaitRetention()
    archive: str | None = None

    def retention(self) -> dict[Status, float]:
        given: dict[Status, float | None] = self.retention_secs.model_dump()  # type: ignore[assignment]
        return {status: secs for status, secs in given.items() if secs is not None}


class WorkflowSettings(Table):
    """`[workflows]` (W10): the hosts that `api` steps reach without asking, and whether they reach private ones."""

    api_hosts: list[Annotated[str, BeforeValidator(host_pattern)]] = []
    private_addresses: bool = False


class RuntimeSettings(Table):
    """`[runtime]`: how many calls run at once (W11); None: unlimited."""

    max_running: Annotated[int, Field(ge=1)] | None = None


class TlsSettings(Table):
    """`[engines.temporal] tls`: files, relative ones taken from the directory of the configuration. None: the
    certificate authorities of the system, and no certificate of our own."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


class TemporalSettings(Table):
    """`[engines.temporal]`: the server and the task queue that tools with `engine = "temporal"` run on."""

    address: Annotated[str, BeforeValidator(server_address)] = "127.0.0.1:7233"
    namespace: Annotated[str, Field(min_length=1)] = "default"
    task_queue: Annotated[str, Field(min_length=1)] = "keephold"
    tls: Annotated[TlsSettings | None, BeforeValidator(tls_files)] = None
    api_key_env: str | None = None
    ui: Annotated[str | None, BeforeValidator(http_url)] = None
    """The address of Temporal's own pages, for links."""


class McpServerSettings(Table):
    """`[mcp.servers.<name>]`: a server whose tools are used (M6)."""

    command: Annotated[str | list[str] | None, BeforeValidator(command_words)] = None
    args: list[str] = []
    env: dict[str, str] = {}
    pass_env: VariableNames = []
    cwd: str = "."
    url: Annotated[str | None, BeforeValidator(http_url)] = None
    headers: dict[str, str] = {}
    oauth: bool = False
    scope: str | None = None
    timeout_secs: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 30
    enabled: bool = True
    tools: list[str] | None = None
    prefix: Annotated[str, BeforeValidator(tool_prefix)] = ""
    stateful: bool = False


class McpSettings(Table):
    """`[mcp]`: how tools are served to clients (M1, M2), and the servers whose tools are used (M6)."""

    schema_: Annotated[Literal["generic", "canonical"], Field(alias="schema")] = "generic"
    task_after_ms: Annotated[int, Field(ge=0)] = 500
    answer_within_secs: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 45
    builtins: list[str] | None = None
    background_secs: Annotated[int, Field(ge=0)] = 600
    servers: dict[str, McpServerSettings] = {}


class AcpSettings(Table):
    """`[acp]`: how editors learn that a turn is complete (X2), whether commands use their terminals, and which models
    they offer besides the configured one."""

    turn_complete: Literal["extension", "update", "off"] = "extension"
    terminals: bool = True
    models: list[str] = []


class ServeSettings(Table):
    """`[serve]`: where `keephold serve` listens, its public address, and whether a user watches its dashboard."""

    host: str = "127.0.0.1"
    port: int = Field(default=8420, ge=0, le=65_535)
    url: str | None = None
    person: bool = True


class Config(Table):
    """A whole configuration. `Config()` is the one without a file: all defaults, no tools."""

    conversation: ConversationSettings = ConversationSettings()
    limits: LimitSettings = LimitSettings()
    store: StoreSettings = StoreSettings()
    runtime: RuntimeSettings = RuntimeSettings()
    wait_handles: WaitHandleSettings = WaitHandleSettings()
    workflows: WorkflowSettings = WorkflowSettings()
    engines: dict[Engine, TemporalSettings] = {}
    agents: dict[str, AgentSettings] = {}
    mcp: McpSettings = McpSettings()
    acp: AcpSettings = AcpSettings()
    serve: ServeSettings = ServeSettings()
    _source: Source | None = PrivateAttr(default=None)
    _directories: tuple[Path, ...] = PrivateAttr(default=())
    """Those of an editor's session: its working directory, then the additional ones (X6)."""

    def in_session(self, directory: str, additional: Sequence[str] = ()) -> "Config":
        """Return it for a session whose tools run in this directory."""
        made = self.model_copy()
        made._directories = (Path(directory), *map(Path, additional))
        return made

    @property
    def directory(self) -> Path:
        """Where programs run that set no `cwd`: the session's working directory, else the file's."""
        return self._directories[0] if self._directories else self.root

    @property
    def surroundings(self) -> str:
        """The session's directories, in words for a model; empty if there is no session."""
        if not self._directories:
            return ""
        here, *more = (f"`{path}`" for path in self._directories)
        also = f" The user has opened these directories, too: {', '.join(more)}." if more else ""
        return f"The working directory is {here}. Tools run there.{also}"

    @property
    def source(self) -> Source | None:
        return self._source

    @property
    def root(self) -> Path:
        """The base of relative paths: the file's directory, or the working directory without a file."""
        return Path.cwd() if self._source is None else self._source.path.parent

    @property
    def store_url(self) -> str | None:
        """`[store] url`, with a relative path taken from the directory of this file."""
        url, sqlite = self.store.url, "sqlite:///"
        if url is None or not url.startswith(sqlite):
            return url
        return f"{sqlite}{self.root / Path(url.removeprefix(sqlite)).expanduser()}"

    @property
    def archive_places(self) -> list[Path]:
        """The directories in which archives must be: this file's, and the user's state directory."""
        state = state_directory()
        return [self.root, *([] if state is None else [state])]

    @property
    def has_model(self) -> bool:
        settings = self.conversation
        return bool(settings.assistant.model or settings.inquiry.assistant.model or self.agents)

    def fixed_tables(self, other: "Config | None") -> list[str]:
        """Return the tables that differ from another configuration and that a runtime reads only when it is made."""
        was = other or Config()
        names = ("store", "limits", "wait_handles", "workflows", "engines", "mcp", "acp", "serve")
        differ = [name for name in names if getattr(self, name) != getattr(was, name)]
        ours, theirs, within = self.conversation, was.conversation, ("detached", "inquiry")
        return differ + [f"conversation.{name}" for name in within if getattr(ours, name) != getattr(theirs, name)]

    def mcp_servers(self) -> "list[McpServer]":
        """Return the MCP servers whose tools are used."""
        if not self.mcp.servers:
            return []
        from keephold.config.build import mcp_servers

        return mcp_servers(self)

    def ignored_settings(self) -> list[str]:
        """Return one line for each setting that is written and understood, but has no effect yet or without a model."""
        source = self._source
        if source is None:
            return []
        found: list[tuple[KeyPath, str]] = []
        if self.conversation.detached == "auto" and not self.has_model:
            found.append((("conversation", "detached"), f'{_NO_MODEL} "auto" lets calls run and answers no question'))
        for name, tool in self.conversation.tools.items():
            found += [((*TOOLS, name, *key), reason) for key, reason in _ignored(tool, self.has_model)]
        found.sort(key=lambda note: source.line(note[0]))
        return list(dict.fromkeys(f"{source.at(key)}: {reason}" for key, reason in found))


_NO_MODEL = "there is no model to ask ([conversation.assistant] names one, or a program by `Runtime(inquiry=…)`);"


def _ignored(tool: ToolSettings, has_model: bool) -> Iterator[tuple[KeyPath, str]]:
    if tool.source == "builtin" or has_model:
        return
    if "on_turn_end" in tool.spawn.lifecycle.model_fields_set and tool.spawn.lifecycle.on_turn_end == "inquire":
        yield ("spawn", "lifecycle", "on_turn_end"), f'{_NO_MODEL} "inquire" is treated as "abort"'
    for question, settings in tool.questions.items():
        if settings.target != "user":
            reason = "the user is asked, or the model by `apply`; with neither, `detached` decides"
            yield ("questions", question, "target"), f"{_NO_MODEL} {reason}"
