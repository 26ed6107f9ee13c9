// Keeps prompts from being answered by accident. A button of a request takes no press for a moment after it has
// appeared or moved, and nothing is approved before all of it was on the screen.
//
// `data-whole` marks the text that is approved; its value changes with the text. `data-approves` marks the buttons that
// approve it, `data-unseen` the sentence beside them.

const QUIET = 700; // milliseconds
const CLOSE = 2; // pixels that browsers round away

// Where each button is, and since when. Scrolling moves a button on the screen but not on the page, and a browser that
// keeps the reader's place the other way round: only a change of both is a move that the user did not make.

const places = new WeakMap();

function isSame(one, other) {
  return Math.abs(one - other) <= 0.5;
}

function measure() {
  const now = performance.now();
  const buttons = [...document.querySelectorAll(".request form button, .request-group form button")];
  for (const button of buttons) {
    const { left, top } = button.getBoundingClientRect();
    const x = left + scrollX;
    const y = top + scrollY;
    const old = places.get(button);
    const stays = old && ((isSame(old.left, left) && isSame(old.top, top)) || (isSame(old.x, x) && isSame(old.y, y)));
    places.set(button, { left, top, x, y, since: stays ? old.since : now });
  }
  return buttons;
}

function remaining(button) {
  return (places.get(button)?.since ?? Infinity) + QUIET - performance.now();
}

// Keys: y and n press the card's yes and no, e edits, 1 to 9 choose. They press the buttons, so what does not count for
// a press does not count for a key.

const PRESSED = {
  y: '[value="approve"], [name="value"][value="true"]',
  n: '[name="decision"][value="deny"], [name="value"][value="false"]',
};

export function answer(card, key) {
  if (key === "e") {
    const edit = card.querySelector('details[data-key^="edit-"]');
    if (edit) edit.open = true;
    edit?.querySelector("textarea").focus();
    return Boolean(edit);
  }
  const nth = Number(key);
  const options = card.querySelectorAll('.choices [name="value"], .options input');
  const button = nth ? options[nth - 1] : card.querySelector(PRESSED[key]);
  if (button?.matches("input")) button.focus();
  button?.click();
  return Boolean(button);
}

// Which parts of each text were on the screen, in pixels from its beginning

const looks = new WeakMap();

function look(box) {
  const { whole } = box.dataset;
  let seen = looks.get(box);
  if (!seen || seen.whole !== whole || (!seen.all && (seen.width !== box.clientWidth || seen.height !== box.scrollHeight))) {
    seen = { whole, width: box.clientWidth, height: box.scrollHeight, parts: [], all: false }; // its lines have moved
    looks.set(box, seen);
  }
  const edge = box.getBoundingClientRect().top + box.clientTop;
  const from = Math.max(edge, 0);
  const to = Math.min(edge + box.clientHeight, innerHeight);
  if (seen.all || document.hidden || to <= from) return seen;
  seen.parts = joined([...seen.parts, [box.scrollTop + from - edge, box.scrollTop + to - edge]]);
  const [[first, last]] = seen.parts;
  seen.all = first <= CLOSE && last >= box.scrollHeight - CLOSE;
  return seen;
}

function joined(parts) {
  parts.sort(([one], [other]) => one - other);
  const result = [parts[0]];
  for (const [from, to] of parts.slice(1)) {
    const last = result.at(-1);
    if (from <= last[1] + CLOSE) last[1] = Math.max(last[1], to);
    else result.push([from, to]);
  }
  return result;
}

function boxOf(element) {
  return element.closest(".request")?.querySelector("[data-whole]") ?? null;
}

function isSeen(element) {
  const box = boxOf(element);
  return box === null || look(box).all;
}

// Allowing several cards: those that were on the screen as a whole, with all of their text.

function offer(form) {
  const group = form.closest(".request-group");
  const cards = [...group.querySelectorAll(".request")];
  const seen = cards.filter((card) => look(card).all && isSeen(card));
  const button = form.querySelector("button");
  const field = form.elements.namedItem("cards");
  const wanted = seen.map((card) => card.dataset.card).join(" ");
  if (field.value !== wanted) {
    field.value = wanted;
    places.delete(button); // it means something else now
  }
  const all = seen.length === cards.length ? "all " : "";
  const told = seen.length ? `Allow ${all}${seen.length} that you have seen` : "Allow those that you have seen";
  if (button.textContent !== told) button.textContent = told;
  return seen.length > 0;
}

function lines(box) {
  const { lineHeight, paddingTop, paddingBottom } = getComputedStyle(box);
  const height = parseFloat(lineHeight);
  const { all, parts } = look(box);
  const seen = parts.reduce((sum, [from, to]) => sum + to - from, 0);
  const total = Math.round((box.scrollHeight - parseFloat(paddingTop) - parseFloat(paddingBottom)) / height);
  return { total, unseen: all ? 0 : Math.min(total, Math.max(1, Math.round((box.scrollHeight - seen) / height))) };
}

function sentence(box) {
  const { total, unseen } = lines(box);
  if (!unseen) return box.dataset.long === undefined ? "" : "You have seen all of it.";
  return `${unseen} of ${total} lines not seen yet: scroll to see all of it first.`;
}

// The page

let timer = null;
let due = false;

function show() {
  due = false;
  let soonest = Infinity;
  for (const card of document.querySelectorAll(".request-group .request")) look(card);
  const none = new Set([...document.querySelectorAll("[data-seen-cards]")].filter((form) => !offer(form)));
  for (const button of measure()) {
    const wait = remaining(button);
    if (wait > 0) soonest = Math.min(soonest, wait);
    const off = wait > 0 || none.has(button.form) || (button.matches("[data-approves]") && !isSeen(button));
    if (off !== button.hasAttribute("aria-disabled")) button.toggleAttribute("aria-disabled", off);
    if (off && button.getAttribute("aria-disabled") !== "true") button.setAttribute("aria-disabled", "true");
  }
  for (const note of document.querySelectorAll(".request [data-unseen]")) {
    const box = boxOf(note);
    const told = box ? sentence(box) : "";
    if (note.textContent !== told) note.textContent = told;
  }
  clearTimeout(timer);
  if (soonest < Infinity) timer = setTimeout(show, Math.ceil(soonest));
}

function showSoon() {
  if (due) return;
  due = true;
  requestAnimationFrame(show);
}

// Measuring now finds every move, also one that nothing has reported.
document.addEventListener("submit", (event) => {
  const button = event.submitter ?? event.target.querySelector("button");
  if (!button?.closest(".request, .request-group")) return;
  const several = event.target.matches("[data-seen-cards]");
  const none = several && !offer(event.target);
  measure();
  const early = remaining(button) > 0;
  if (early) places.get(button).since = performance.now(); // this press was meant for what was there before
  if (early || none || (button.matches("[data-approves]") && !isSeen(button))) {
    event.preventDefault();
    event.stopImmediatePropagation();
    show();
  }
}, true);

document.addEventListener("formdata", ({ target, formData }) => {
  if (target.matches("[data-seen-cards]") || (target.closest(".request") && isSeen(target))) formData.set("seen", "yes");
});

new MutationObserver(showSoon).observe(document.body, { subtree: true, childList: true, characterData: true, attributes: true });
new ResizeObserver(showSoon).observe(document.body);
for (const [what, where] of [["scroll", document], ["input", document], ["toggle", document], ["resize", window]]) {
  where.addEventListener(what, showSoon, { capture: true, passive: true });
}
document.addEventListener("visibilitychange", showSoon);
show();
