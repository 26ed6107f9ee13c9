// Drives an MCP server with the client of a TypeScript SDK, as frameworks.py does with those of Python:
//   node --input-type=module -e SOURCE typescript1|typescript2|ext_tasks TARGET
// ext_tasks, the official requester of tasks, uses the second SDK.

import { createInterface } from "node:readline";

const [framework, target] = [process.argv[1], JSON.parse(process.argv[2])];
const asked = [];

function filledIn({ properties }) {
  asked.push(Object.keys(properties).length);
  const byType = { integer: 7, number: 1.5, boolean: true, string: "Ada" };
  const byFormat = { email: "ada@example.org", date: "2026-01-02", uri: "https://example.org/" };
  const value = (field) => field.default ?? field.enum?.at(-1) ?? byFormat[field.format] ?? byType[field.type];
  return Object.fromEntries(Object.entries(properties).map(([name, field]) => [name, value(field)]));
}

async function loaded() {
  if (framework !== "typescript1") {
    const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
    const { StdioClientTransport } = await import("@modelcontextprotocol/client/stdio");
    return { Client, StreamableHTTPClientTransport, StdioClientTransport, elicit: "elicitation/create" };
  }
  const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
  const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
  const { StdioClientTransport } = await import("@modelcontextprotocol/sdk/client/stdio.js");
  const { ElicitRequestSchema } = await import("@modelcontextprotocol/sdk/types.js");
  return { Client, StreamableHTTPClientTransport, StdioClientTransport, elicit: ElicitRequestSchema };
}

const sdk = await loaded();
const tasks = framework === "ext_tasks" ? await import("@modelcontextprotocol/ext-tasks/client") : null;

async function opened() {
  // At 2026-07-28 a host of ext-tasks sends some requests itself (ext_tasks.mjs); here the SDK sends all.
  const era = tasks ? { versionNegotiation: { mode: "legacy" } } : {};
  const capabilities = { elicitation: { form: {} } };
  const client = new sdk.Client({ name: framework, version: "1" }, { capabilities, ...era });
  const answer = ({ params }) => ({ action: "accept", content: filledIn(params.requestedSchema) });
  client.setRequestHandler(sdk.elicit, answer);
  const { url, headers } = target;
  const transport = url
    ? new sdk.StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } })
    : new sdk.StdioClientTransport(target);
  await client.connect(transport);
  return tasks ? requester(client) : client;
}

// Calls that may be tasks are, and their result is polled for.
async function requester(client) {
  const { tools } = await client.listTools();
  const refuse = () => {
    throw new Error("nothing but a form is asked for here");
  };
  const elicitation = ({ params }) => ({ action: "accept", content: filledIn(params.requestedSchema) });
  const handler = tasks.createApplicationInputHandler({ elicitation, sampling: refuse, roots: refuse });
  const session = tasks.createTaskSessionFromClient(client, { endpointId: "server", onInputRequest: handler });
  const callTool = async ({ name, arguments: args }) => {
    const { inputSchema, execution } = tools.find((tool) => tool.name === name);
    const taskSupport = execution?.taskSupport;
    const preference = taskSupport ? "prefer" : "allow";
    const options = { declaration: { name, inputSchema, taskSupport }, task: { preference } };
    const { outcome } = await (await session.callTool(name, args, options)).settle();
    if (outcome.error) throw new Error(outcome.error.message);
    return outcome.result;
  };
  return { listTools: () => client.listTools(), callTool };
}

const clients = new Map();

async function done({ do: what, client: name, tool, arguments: args }) {
  if (what === "asked") return { asked };
  if (!clients.has(name)) clients.set(name, opened());
  const client = await clients.get(name);
  if (what === "list") return { tools: (await client.listTools()).tools.map((each) => each.name) };
  const result = await client.callTool({ name: tool, arguments: args ?? {} });
  const texts = result.content.filter((block) => block.type === "text").map((block) => block.text);
  return { text: texts.join("\n"), error: result.isError ?? false };
}

for await (const line of createInterface({ input: process.stdin })) {
  const wanted = JSON.parse(line);
  done(wanted)
    .catch((error) => ({ raised: `${error.name}: ${error.message}` }))
    .then((reply) => console.log(JSON.stringify({ id: wanted.id, ...reply })));
}
process.exit(0);
