"""An agent of LangGraph with keephold's tools and a model that says what it was told; prints what the model read."""

import asyncio
import json
from typing import Any

from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from tests.interop.toolbox import SCRIPT, TOOLS, cancel_one

from keephold import Runtime
from keephold.adapters import langchain


async def main() -> None:
    said = [
        AIMessage("", tool_calls=[{"id": id, "name": name, "args": given} for id, name, given in calls])
        for calls in SCRIPT
    ]
    model = FakeMessagesListChatModel(responses=[*said, AIMessage("done")])

    async def speak(state: Any) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    async with Runtime(TOOLS) as rt:
        tools = langchain.tools(rt, "main")
        graph = StateGraph(MessagesState)
        graph.add_node("model", speak)
        graph.add_node("tools", ToolNode(tools))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
        result = await graph.compile().ainvoke({"messages": [HumanMessage("go")]})
        by_name = {tool.name: tool for tool in tools}
        cancelled = await cancel_one(by_name["hang"].ainvoke({}))
        offered = [convert_to_openai_tool(tool)["function"] for tool in tools] == rt.tools()
    read = [
        [message.tool_call_id, message.content, message.status == "error"]
        for message in result["messages"]
        if isinstance(message, ToolMessage)
    ]
    print(
        json.dumps({"read": read, "last": result["messages"][-1].content, "offered": offered, "cancelled": cancelled})
    )


asyncio.run(main())
