// Drives the fixture server with the official requester of tasks, ext-tasks, in the era that is named:
//   node --input-type=module - URL modern|legacy < ext_tasks.mjs
// Prints one JSON object: what came of each call. The test beside it says what should have come.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { createApplicationInputHandler, createTaskSessionFromClient } from "@modelcontextprotocol/ext-tasks/client";

const [url, era] = process.argv.slice(2);
const VERSION = "2026-07-28";
const clientInfo = { name: "interop", version: "1" };
const capabilities = {
  elicitation: { form: {} },
  ...(era === "modern" ? { extensions: { "io.modelcontextprotocol/tasks": {} } } : {}),
};
const ANSWERS = { confirm: true, name: "Ada" };
const asked = [];

// At 2026-07-28 the SDK knows no tasks, so that the host sends these requests itself.
let nextId = 1000;
async function dispatch(request, options = {}) {
  const { method, params } = request;
  const name = params.taskId ?? params.name;
  const response = await fetch(url, {
    method: "POST",
    headers: {
      "Content-Type": "application/json",
      Accept: "application/json, text/event-stream",
      "MCP-Protocol-Version": VERSION,
      "Mcp-Method": method,
      "Mcp-Name": name,
    },
    body: JSON.stringify({ jsonrpc: "2.0", id: nextId++, ...request }),
    signal: options.signal,
  });
  const text = await response.text();
  const message = response.headers.get("content-type").includes("event-stream")
    ? text.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim())
        .filter(Boolean).map(JSON.parse).find((each) => "result" in each || "error" in each)
    : JSON.parse(text);
  return message.error ? { kind: "error", error: message.error } : { kind: "result", result: message.result };
}

function answer(request) {
  const field = Object.keys(request.params.requestedSchema.properties)[0];
  asked.push(field);
  return { action: "accept", content: { [field]: ANSWERS[field] } };
}

const refuse = () => {
  throw new Error("nothing but a form is asked for here");
};

async function open() {
  const client = new Client(clientInfo, {
    capabilities,
    versionNegotiation: { mode: era === "modern" ? { pin: VERSION } : "legacy" },
  });
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  const framing = { protocolVersion: VERSION, clientInfo, clientCapabilities: capabilities };
  const session = createTaskSessionFromClient(client, {
    endpointId: "fixture",
    onInputRequest: createApplicationInputHandler({ elicitation: answer, sampling: refuse, roots: refuse }),
    ...(era === "modern" ? { rawDispatch: dispatch, v2RequestFraming: framing } : {}),
  });
  const close = async () => {
    await session.close();
    await client.close();
  };
  return { client, session, close };
}

const { client, session, close } = await open();
// A 2025-11-25 requester asks for a task by itself, if the tool is declared to allow it.
const { tools } = await client.listTools();
function options(name) {
  const { inputSchema, execution } = tools.find((tool) => tool.name === name);
  const taskSupport = execution?.taskSupport;
  return { declaration: { name, inputSchema, taskSupport }, task: { preference: taskSupport ? "prefer" : "allow" } };
}

const texts = (result) => result.content.filter((block) => block.type === "text").map((block) => block.text);

async function settled(execution) {
  const { outcome } = await execution.settle();
  const { status, error, result } = outcome;
  return {
    kind: execution.kind,
    status,
    ...(error ? { error: { code: error.code, message: error.message } } : {}),
    ...(result ? { texts: texts(result), isError: result.isError ?? false } : {}),
  };
}

const call = (name, args = {}) => session.callTool(name, args, options(name));
const done = async (name, args) => settled(await call(name, args));
const now = async (name, args) => texts((await client.callTool({ name, arguments: args })))[0];

async function cancelled() {
  const execution = await call("slow_compute", { seconds: 60 });
  await execution.cancel();
  return settled(execution);
}

async function foundAgain() {
  const execution = await call("slow_compute", { seconds: 1 });
  let reference;
  await execution.handoff((given) => void (reference = given));
  const other = await open();
  const report = await settled(await other.session.resumeTask(reference));
  await other.close();
  return report;
}

async function waitedFor() {
  const handleIds = [`ext-tasks-${era}-1`, `ext-tasks-${era}-2`];
  for (const handleId of handleIds) await now("create_wait_handle", { handleId, type: "custom" });
  const waiting = done("wait_for_multiple", { handleIds, mode: "all", timeoutMs: 20000 });
  for (const handleId of handleIds) await now("complete_wait_handle", { handleId, result: { of: handleId } });
  return waiting;
}

const report = {
  capabilities: session.capabilities,
  greet: await done("greet", { name: "World" }),
  slow_compute: await done("slow_compute", { seconds: 1 }),
  failing_job: await done("failing_job"),
  protocol_error_job: await done("protocol_error_job"),
  cancelled: await cancelled(),
  found_again: await foundAgain(),
  wait_for_multiple: await waitedFor(),
};
// At 2025-11-25 it never asks for the result of a task that needs input, which is where a server asks.
if (era === "modern") {
  report.confirm_delete = await done("confirm_delete", { filename: "a.txt" });
  report.multi_input = await done("multi_input");
}
report.asked = asked;
await close();
console.log(JSON.stringify(report));
