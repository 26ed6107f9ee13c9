// Drives `keephold acp` with the TypeScript SDK of ACP, all scenes with one agent:
//   node --input-type=module - FLAG COMMAND… < acp_client.mjs
// FLAG is a file that a tool waits for. Prints one JSON object: what came of each scene, and every message in both
// directions. The test beside it says what should have come.

import { spawn } from "node:child_process";
import { writeFileSync } from "node:fs";
import { Readable, Writable } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import { client, methods, ndJsonStream, PROTOCOL_VERSION } from "@agentclientprotocol/sdk";

const [flag, command, ...args] = process.argv.slice(2);
const SIGNAL = "_keephold/turn_complete";
const wire = [];

function gate() {
  let open;
  const opened = new Promise((resolve) => (open = resolve));
  return { open, opened };
}

function recorded(stream) {
  const note = () =>
    new TransformStream({
      transform(message, controller) {
        wire.push(message);
        controller.enqueue(message);
      },
    });
  const out = note();
  out.readable.pipeTo(stream.writable).catch(() => {});
  return { readable: stream.readable.pipeThrough(note()), writable: out.writable };
}

// What the client does with an update; and a queue for updates, which the SDK does not have. A scene sets them.
let handle = async () => {};
let inOrder = true;
let queue = Promise.resolve();
let permit = () => "allow_once";
let seen = () => {};
const complete = new Map(); // by session: tells whoever waits for the end of its turn

function received({ params }) {
  seen(params.update);
  if (!inOrder) return handle(params.update);
  queue = queue.then(() => handle(params.update));
  return queue;
}

function completed({ params }) {
  queue = queue.then(() => complete.get(params.sessionId)?.());
}

async function permission({ params, agent }) {
  const optionId = await permit(params, agent);
  return { outcome: optionId ? { outcome: "selected", optionId } : { outcome: "cancelled" } };
}

const agentProcess = spawn(command, args, { stdio: ["pipe", "pipe", "inherit"] });
const stream = ndJsonStream(Writable.toWeb(agentProcess.stdin), Readable.toWeb(agentProcess.stdout));
// The SDK offers a message to one handler after another, each a step later. Where the signal's handler came first, a
// signal could overtake an update that was read before it.
const connection = client({ name: "interop" })
  .onNotification(methods.client.session.update, received)
  .onNotification(SIGNAL, (params) => params, completed)
  .onRequest(methods.client.session.requestPermission, permission)
  .connect(recorded(stream));
const agent = connection.agent;

function ask(sessionId, step, options) {
  const prompt = [{ type: "text", text: JSON.stringify([step]) }];
  return agent.request(methods.agent.session.prompt, { sessionId, prompt }, options);
}

const cancel = (sessionId) => agent.notify(methods.agent.session.cancel, { sessionId });
const session = async () => (await agent.request(methods.agent.session.new, { cwd: "/tmp", mcpServers: [] })).sessionId;

// A turn is over when its end was told and everything before it was handled, not when the prompt is answered.
async function turn(sessionId, step, options) {
  const { open, opened } = gate();
  complete.set(sessionId, open);
  const { stopReason } = await ask(sessionId, step, options);
  await opened;
  return stopReason;
}

const WORK = { text: ["a ", "b ", "c "], calls: [["1", "look", { path: "a.txt" }]] };

// Handlers go on when the prompt is answered and no sooner: if the SDK waited for them, there would be no answer.
async function race(sessionId) {
  const { open, opened } = gate();
  let [begun, handled] = [0, 0];
  inOrder = false;
  handle = async () => {
    begun++;
    await opened;
    handled++;
  };
  await ask(sessionId, WORK);
  const report = { begun, handled };
  open();
  handle = async () => {};
  inOrder = true;
  return report;
}

async function slowHandlers(sessionId) {
  const handled = [];
  handle = async (update) => {
    await sleep(20);
    handled.push(update);
  };
  await turn(sessionId, WORK);
  handle = async () => {};
  return handled;
}

async function permissions(sessionId) {
  const step = { calls: [["1", "asked", { word: "x" }]] };
  const stopReasons = [await turn(sessionId, step)];
  permit = () => "reject_once";
  stopReasons.push(await turn(sessionId, step));
  permit = () => "allow_once";
  return stopReasons;
}

async function cancelled(sessionId) {
  seen = (update) => update.status === "in_progress" && cancel(sessionId);
  const stopReasons = [await turn(sessionId, { calls: [["1", "hangs", {}]] })];
  seen = (update) => update.sessionUpdate === "agent_message_chunk" && cancel(sessionId);
  stopReasons.push(await turn(sessionId, { text: ["a"], hang: true }));
  const request = new AbortController(); // by `$/cancel_request`
  seen = (update) => update.sessionUpdate === "agent_message_chunk" && request.abort();
  stopReasons.push(await turn(sessionId, { text: ["a"], hang: true }, { cancellationSignal: request.signal }));
  seen = () => {};
  permit = () => void cancel(sessionId);
  stopReasons.push(await turn(sessionId, { calls: [["1", "asked", { word: "x" }]] }));
  permit = () => "allow_once";
  return stopReasons;
}

// A handle that was kept ends while no turn runs.
async function background(sessionId) {
  await turn(sessionId, { calls: [["1", "waits", { action: "spawn", id: "w", file: flag }]] });
  const { open, opened } = gate();
  seen = (update) => update.status === "completed" && open(update);
  writeFileSync(flag, "");
  const update = await opened;
  seen = () => {};
  return update;
}

async function loaded(sessionId) {
  const replayed = [];
  seen = (update) => replayed.push(update);
  await agent.request(methods.agent.session.load, { sessionId, cwd: "/tmp", mcpServers: [] });
  seen = () => {};
  return replayed;
}

const { agentCapabilities } = await agent.request(methods.agent.initialize, {
  protocolVersion: PROTOCOL_VERSION,
  clientCapabilities: {},
});
const sessionId = await session();
const report = {
  agentCapabilities,
  streamed: await turn(sessionId, { think: "hm", text: ["a ", "b"] }),
  permissions: await permissions(sessionId),
  loaded: await loaded(sessionId),
  race: await race(await session()),
  slowHandlers: await slowHandlers(await session()),
  cancelled: await cancelled(await session()),
  background: await background(await session()),
};
connection.close();
agentProcess.stdin.end();
report.code = await new Promise((resolve) => agentProcess.once("exit", resolve));
console.log(JSON.stringify({ ...report, wire }));
