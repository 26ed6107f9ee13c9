// Updates an open page, and sends its forms without a page load. Everything also works without it.
//
// On an event (/api/events) the same page is fetched again and every element with `data-live` is updated in place, so
// focus, open details, selected text and input survive. `data-still`: another script owns the element's content.
// `data-key` identifies an element.

import { morph } from "./morph.js";

const EVENTS = [
  "handle.created", "handle.running", "handle.waiting", "handle.stopped", "handle.parked", "handle.ready", "handle.attempt",
  "handle.changed", "handle.stepped", "key.opened", "key.resolved", "key.revoked", "turn.began", "turn.ended",
  "notification.queued", "notification.delivered", "notification.removed", "conversation.said", "conversation.forgotten", "process.event",
  "requests", "reset",
];
const PAUSE = 500; // between two fetches of the page
const HIDDEN_PAUSE = 20_000; // while the page is hidden; it then keeps no connection, since browsers allow six
const RETRY = 2000;
const TOLD = 8000;

// Times, updated every second by the server's clock.

let ahead = 0; // seconds that the server's clock is ahead

function setClock(page) {
  const told = Number(page.body.dataset.now);
  if (told) ahead = told - Date.now() / 1000;
}

function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  for (const [size, unit, smaller, next] of [[86400, "d", 3600, "h"], [3600, "h", 60, "m"], [60, "m", 1, "s"]]) {
    if (whole >= size) return `${Math.floor(whole / size)}${unit} ${Math.floor((whole % size) / smaller)}${next}`;
  }
  return `${whole}s`;
}

function relative(moment, now) {
  return moment > now ? `in ${duration(moment - now)}` : `${duration(now - moment)} ago`;
}

function tick(root) {
  const now = Date.now() / 1000 + ahead;
  for (const time of root.querySelectorAll("time[data-since], time[data-moment]")) {
    const { since, moment } = time.dataset;
    const told = since ? duration(now - since) : relative(moment, now);
    if (time.textContent !== told) time.textContent = told;
  }
}

// The page, fetched again

let fetching = false;
let again = false;
let fetched = 0;
let sent = 0; // forms sent: a page requested before a form was sent is outdated
let sending = 0; // forms under way: only the answer shows their result
let timer = null;

function refreshSoon() {
  if (fetching) again = true;
  else timer ??= setTimeout(refresh, Math.max(0, fetched + PAUSE - Date.now()));
}

async function refresh() {
  timer = null;
  fetching = true;
  again = false;
  const before = sent;
  try {
    const response = await fetch(address(), { headers: { accept: "text/html" } });
    const html = await response.text();
    if (before !== sent || sending) again = true;
    else if (response.ok) take(html);
    else if (response.status === 401 || response.status === 403) location.reload(); // logged out: ask for the token
  } catch {
    // The server is unreachable; the stream reports it, and fetches again when it is back.
  }
  fetching = false;
  fetched = Date.now();
  if (again) refreshSoon();
}

function address() {
  const here = new URL(location.href);
  here.hash = "";
  for (const name of ["said", "of"]) here.searchParams.delete(name); // shown once
  return here;
}

// `names`: update only these parts, because the page is another one.
function take(html, names = null) {
  const page = new DOMParser().parseFromString(html, "text/html");
  setClock(page);
  tick(page);
  if (!names) {
    document.title = page.title;
    document.getElementById("icon").setAttribute("href", page.getElementById("icon").getAttribute("href"));
  }
  for (const old of document.querySelectorAll("[data-live]")) {
    const name = old.dataset.live;
    const fresh = page.querySelector(`[data-live="${CSS.escape(name)}"]`);
    if (!fresh || (names && !names.includes(name)) || (name === "flash" && !fresh.children.length)) continue;
    morph(old, fresh);
    if (name === "flash") hideSoon(old);
  }
  glance();
}

// A success message disappears after a while; an error stays.
let hiding = null;

function hideSoon(flash) {
  clearTimeout(hiding);
  if (!flash.querySelector(".flash-wrong")) hiding = setTimeout(() => flash.replaceChildren(), TOLD);
}

// The server's streams

const lost = document.querySelector("[data-lost]");
let events = null;
let glances = null;
let watched = "";
let slow = null;

function listen() {
  events?.close();
  events = new EventSource("/api/events");
  events.onopen = () => {
    lost.hidden = true;
    refreshSoon(); // events before this stream began were missed
  };
  events.onerror = () => {
    lost.hidden = false;
    if (!isClosed(events)) return;
    refreshSoon();
    setTimeout(() => isClosed(events) && listen(), RETRY); // this browser does not retry
  };
  for (const type of EVENTS) events.addEventListener(type, refreshSoon);
  glance();
}

function isClosed(stream) {
  return stream?.readyState === EventSource.CLOSED;
}

// A separate stream carries the last output lines of the running handles on the page.
function glance() {
  const lines = [...document.querySelectorAll("[data-glance]")];
  const uids = [...new Set(lines.map((line) => line.dataset.glance))].join(",");
  if (uids === watched && (!uids || (glances && !isClosed(glances)))) return;
  glances?.close();
  glances = null;
  watched = uids;
  if (!uids || document.hidden) return;
  glances = new EventSource(`/api/glances?uids=${encodeURIComponent(uids)}`);
  glances.addEventListener("glance", ({ data }) => {
    const told = JSON.parse(data);
    for (const line of document.querySelectorAll(`[data-glance="${CSS.escape(told.uid)}"]`)) {
      line.textContent = told.last_line ?? "";
      const bar = line.parentElement.querySelector("progress");
      if (bar && told.progress?.total) Object.assign(bar, { max: told.progress.total, value: told.progress.done ?? 0 });
    }
  });
}

function seen() {
  if (document.hidden) {
    events?.close();
    glances?.close();
    events = glances = null;
    slow ??= setInterval(refreshSoon, HIDDEN_PAUSE);
  } else {
    listen();
    clearInterval(slow);
    slow = null;
  }
}

// Forms that act are sent from here; the answer is their page, or an error.

async function send(form, button) {
  const fields = new URLSearchParams(new FormData(form, button));
  const buttons = [...form.querySelectorAll("button")];
  const following = nextCard(form);
  buttons.forEach((each) => { each.disabled = true; });
  sending += 1;
  try {
    const response = await fetch(form.action, { method: "POST", body: fields });
    const html = await response.text();
    sent += 1;
    const card = form.closest(".request");
    const gone = new URL(response.url).searchParams.get("said") === "gone"; // not taken: keep the card visible
    if (response.ok && !gone) settle(card ?? form);
    if (response.ok) take(html);
    else if (!card || !takeCard(card, html)) take(html, ["flash"]); // the error is on a separate page
    if (!form.isConnected) { // the focused button is gone
      const next = following?.isConnected ? following : document.querySelector(".request[data-card]");
      (next?.querySelector("h3") ?? document.getElementById("main")).focus({ preventScroll: !next });
    }
  } catch {
    say("It could not be sent: the server does not answer. What you typed is still here.");
  }
  sending -= 1;
  buttons.forEach((each) => { each.disabled = false; });
}

function nextCard(form) {
  const cards = [...document.querySelectorAll(".request[data-card]")];
  return cards[cards.indexOf(form.closest(".request")) + 1] ?? null;
}

// Show an answer's error in its card, which the returned page contains.
function takeCard(card, html) {
  const page = new DOMParser().parseFromString(html, "text/html");
  const fresh = page.querySelector(`.request[data-key="${CSS.escape(card.dataset.key)}"]`);
  if (!fresh) return false;
  tick(page);
  morph(card, fresh);
  document.querySelector('[data-live="flash"]').replaceChildren();
  return true;
}

// Reset inputs that were sent or are no longer needed; for a card, all of them.
function settle(part) {
  for (const form of part.matches("form") ? [part] : part.querySelectorAll("form")) {
    form.reset();
    form.closest("details")?.removeAttribute("open");
  }
}

function say(text) {
  const told = document.createElement("p");
  told.className = "flash flash-wrong";
  const close = document.createElement("button");
  Object.assign(close, { type: "button", className: "flash-close", textContent: "×", ariaLabel: "Close" });
  close.setAttribute("data-flash-close", "");
  told.append(text, close);
  document.querySelector('[data-live="flash"]').replaceChildren(told);
}

document.addEventListener("submit", (event) => {
  if (!event.target.matches("form[data-send]")) return;
  event.preventDefault();
  send(event.target, event.submitter);
});

// Ignore the second click of a double click: another request may have taken the first one's position.
document.addEventListener("click", (event) => {
  if (event.detail > 1 && event.target.closest("form[data-send] button")) event.preventDefault();
});

document.addEventListener("click", ({ target }) => {
  if (target.matches("[data-dismiss]")) {
    target.closest("[data-gone]").remove();
    document.getElementById("main").focus({ preventScroll: true });
  } else if (target.matches("[data-cancel]")) {
    fold(target.closest("details"));
  } else if (target.closest("[data-flash-close]")) {
    document.querySelector('[data-live="flash"]').replaceChildren();
  }
});

document.addEventListener("keydown", ({ key, target }) => {
  const confirm = key === "Escape" && target.closest("details.confirm[open]");
  if (confirm) fold(confirm);
});

function fold(details) {
  details.removeAttribute("open");
  details.querySelector("summary").focus();
}

document.addEventListener("change", ({ target }) => {
  if (target.matches("form[data-auto] select, form[data-auto] input[type=checkbox]")) target.form.requestSubmit();
});

hideSoon(document.querySelector('[data-live="flash"]'));
setClock(document);
tick(document);
setInterval(() => tick(document), 1000);
document.addEventListener("visibilitychange", seen);
seen();
