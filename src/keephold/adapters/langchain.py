"""keephold's tools for agents of LangChain and LangGraph, which call tools one at a time (G4).

    agent = create_agent(model, tools=langchain.tools(rt, "main"))

Each call is a batch of its own, and no turn ends: the model finds its handles in the next run of the conversation.
"""

from functools import cache
from typing import Any

from keephold.adapters._parts import answered, need_package
from keephold.runtime import Runtime
from keephold.schema.dialects import Dialect

__all__ = ["tools"]


def tools(rt: Runtime, conversation: str, *, dialect: Dialect = "generic") -> list[Any]:
    """Return the tools, for `create_agent`, a `ToolNode` or `bind_tools`. Their handles belong to the conversation."""
    need_package("keephold.adapters.langchain", "langchain_core", "langchain-core")
    return [
        _kind()(rt, conversation, name=tool["name"], description=tool["description"], args_schema=tool["parameters"])
        for tool in rt.tools(dialect)
    ]


@cache
def _kind() -> Any:
    """Return the class of the tools, which needs LangChain."""
    from langchain_core.tools import BaseTool, ToolException

    class KeepholdTool(BaseTool):  # type: ignore[misc]
        """A tool that takes any arguments: keephold checks them itself and answers with the right form (C9)."""

        def __init__(self, rt: Runtime, conversation: str, **fields: Any) -> None:
            super().__init__(handle_tool_error=True, **fields)
            self._rt, self._conversation = rt, conversation

        async def _arun(self, /, **arguments: Any) -> str:
            text, is_error = await answered(self._rt, self._conversation, self.name, arguments)
            if is_error:
                raise ToolException(text)  # becomes a message with the status `error`
            return text

        def _run(self, /, **arguments: Any) -> str:
            raise NotImplementedError("tools of keephold are asynchronous: run the agent with `ainvoke` or `astream`")

    return KeepholdTool
