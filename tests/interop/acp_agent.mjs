// An agent made with the TypeScript SDK of ACP, for the conformance kit: it says some words for each prompt, runs one
// tool call, asks for permission if the prompt says `may I`, and waits to be cancelled if it says `slowly`. With
// `--signal` it offers and sends turn_complete.

import { randomUUID } from "node:crypto";
import { Readable, Writable } from "node:stream";
import { agent, methods, ndJsonStream, PROTOCOL_VERSION, RequestError } from "@agentclientprotocol/sdk";

const signals = process.argv.includes("--signal");
const cancels = new Map(); // by session

async function prompt({ params, requestId, client }) {
  const { sessionId } = params;
  if (!cancels.has(sessionId)) throw RequestError.resourceNotFound(sessionId);
  const stopReason = await turn(sessionId, params.prompt[0].text, client);
  if (signals) {
    const promptRequestId = String(requestId);
    await client.notify("_keephold/turn_complete", { sessionId, promptRequestId, stopReason });
  }
  return { stopReason };
}

async function turn(sessionId, text, client) {
  const toolCallId = randomUUID();
  const cancelled = new Promise((resolve) => cancels.set(sessionId, resolve));
  const tell = (update) => client.notify(methods.client.session.update, { sessionId, update });
  const progress = (status) => tell({ sessionUpdate: "tool_call_update", toolCallId, status });
  await tell({ sessionUpdate: "tool_call", toolCallId, title: "Work", status: "pending" });
  if (text.includes("may I")) {
    const options = [
      { optionId: "yes", name: "Yes", kind: "allow_once" },
      { optionId: "no", name: "No", kind: "reject_once" },
    ];
    const asked = { sessionId, toolCall: { toolCallId }, options };
    const { outcome } = await client.request(methods.client.session.requestPermission, asked);
    if (outcome.outcome === "cancelled" || outcome.optionId === "no") {
      await progress("failed");
      return outcome.outcome === "cancelled" ? "cancelled" : "end_turn";
    }
  }
  await progress("in_progress");
  if (text.includes("slowly")) {
    await cancelled;
    await progress("failed");
    return "cancelled";
  }
  for (const word of text.split(" ")) {
    await tell({ sessionUpdate: "agent_message_chunk", content: { type: "text", text: word } });
  }
  await progress("completed");
  return "end_turn";
}

agent({ name: "typescript" })
  .onRequest(methods.agent.initialize, () => ({
    protocolVersion: PROTOCOL_VERSION,
    agentCapabilities: signals ? { _meta: { "keephold/turnComplete": {} } } : {},
    agentInfo: { name: "typescript", version: "1" },
  }))
  .onRequest(methods.agent.session.new, () => {
    const sessionId = randomUUID();
    cancels.set(sessionId, () => {});
    return { sessionId };
  })
  .onRequest(methods.agent.session.prompt, prompt)
  .onNotification(methods.agent.session.cancel, ({ params }) => cancels.get(params.sessionId)?.())
  .connect(ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin)));
