"""A model that knows nothing but what it is sent. Its instructions tell it how work is started, looked at, sent
input and ended; the names of arguments come from the schemas that it is offered."""

import json
import re
from collections.abc import Sequence
from typing import Any

import jsonschema_rs
from tests.agent.providers.neutral import OfferedTool

Schema = dict[str, Any]
Sent = tuple[str, dict[str, Any]]
_VERBS = {"read": "shows new output", "send": "sends input", "end": "ends it"}


class Naive:
    """Writes calls. Each fits its tool's schema, or the schema and the instructions contradict each other."""

    def __init__(self, instructions: str, tools: Sequence[OfferedTool]) -> None:
        self._told = instructions
        self._tools = {tool.name: tool.schema for tool in tools}

    def run(self, tool: str, **given: Any) -> Sent:
        """A call that runs to its end."""
        return self._call(tool, given)

    def start(self, tool: str, id: str, **given: Any) -> Sent:
        """One in the background, by the example that the instructions give."""
        (example,) = re.findall(r"\{(.*?), …\} starts one", self._told)
        shown = json.loads(f"{{{example}}}")
        own = {key: id if value == "<an id that you choose>" else value for key, value in shown.items()}
        return self._call(tool, {**own, **given})

    def wait(self, *ids: str) -> Sent:
        tool, key = re.findall(r'`(\w+)` with \{"(\w+)": \[ids\]\}', self._told)[0]
        return self._call(tool, {key: list(ids)})

    def read(self, tool: str, id: str) -> Sent:
        return self._verb("read", tool, id)

    def send(self, tool: str, id: str, text: str) -> Sent:
        return self._verb("send", tool, id, input=text)

    def answer(self, tool: str, id: str, value: Any) -> Sent:
        """As JSON, where the schema takes only text."""
        typed = jsonschema_rs.is_valid(_plain(self._schema("send", tool)["properties"]["input"]), value)
        return self._verb("send", tool, id, input=value if typed else json.dumps(value))

    def close(self, tool: str, id: str) -> Sent:
        """End the program's input, by the parameter that says so."""
        properties = self._schema("send", tool)["properties"]
        if "eof" in properties:
            return self._verb("send", tool, id, eof=True)
        if "null ends its input" in properties["input"].get("description", ""):
            return self._verb("send", tool, id, input=None)
        assert "C-c" in properties["keys"]["description"]  # the canonical form says nothing of `input`
        return self._verb("send", tool, id, keys=["C-d"])

    def end(self, tool: str, id: str) -> Sent:
        return self._verb("end", tool, id)

    def _name(self, verb: str) -> str:
        (name,) = re.findall(rf"`(\w+)` {_VERBS[verb]}", self._told)
        return str(name)

    def _schema(self, verb: str, tool: str) -> Schema:
        """That of the tool which has the verb; of a union, the form of this verb."""
        name = self._name(verb)
        schema = self._tools.get(name) or self._tools[tool]
        forms = (form for form in schema.get("oneOf", ()) if form["properties"]["action"] == {"const": name})
        return next(forms, schema)

    def _verb(self, verb: str, tool: str, id: str, **given: Any) -> Sent:
        """The verb is a tool, or an action of the handle's tool."""
        assert "Each takes the `id` that you chose" in self._told
        name = self._name(verb)
        if name in self._tools:
            return self._call(name, {"id": id, **given})
        return self._call(tool, {"action": name, "id": id, **given})

    def _call(self, tool: str, given: dict[str, Any]) -> Sent:
        """Null for what the schema requires and the model has no value for."""
        schema = self._tools[tool]
        given |= {name: None for name in schema.get("required", ()) if name not in given}
        # The canonical union, which no provider takes, has no form without an action; its calls are understood.
        known = {} if "oneOf" in schema and "action" not in given else _plain(schema)
        problems = [error.message for error in jsonschema_rs.validator_for(known).iter_errors(given)]
        assert not problems, f"{tool}: the schema does not take {given}: {problems}"
        unknown = given.keys() - schema["properties"].keys() if "properties" in schema else ()
        assert not unknown, f"{tool}: the schema has no {unknown}"
        return tool, given


def _plain(schema: Any) -> Any:
    """Gemini's `nullable` as JSON Schema."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    own = {key: _plain(value) for key, value in schema.items() if key != "nullable"}
    if "type" in own and isinstance(own["type"], str):
        own["type"] = own["type"].lower()
    return {"anyOf": [own, {"type": "null"}]} if schema.get("nullable") is True else own
