// Single-key shortcuts, and the theme switch.

import { answer } from "./prompts.js";

const ROW = "[data-row]";
const dialog = document.querySelector("[data-keys]");
const on = document.querySelector("[data-keys-on]");

function kept(name, value) {
  try {
    if (value !== undefined) localStorage.setItem(name, value);
    return localStorage.getItem(name);
  } catch {
    return null; // storage is turned off
  }
}

// Focus the first link or field of the next or previous row.
function move(step) {
  const rows = [...document.querySelectorAll(ROW)];
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const row = rows[at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + step))];
  row.querySelector("h3[tabindex], a, button, input")?.focus();
}

function search() {
  const field = document.querySelector("[data-search]");
  if (field) field.select();
  else location.assign("/handles#q");
}

function toRequests() {
  const heading = document.querySelector(".request h3");
  if (heading) heading.focus();
  else if (location.pathname !== "/") location.assign("/#requests-title");
}

const KEYS = { j: () => move(1), k: () => move(-1), "/": search, r: toRequests, "?": () => dialog.showModal() };

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.defaultPrevented) return;
  if (event.target.closest("input:not([type=radio], [type=checkbox]), textarea, select, dialog, [data-still]")) return;
  if (!on.checked) return;
  const card = event.target.closest(".request[data-card]");
  if (card && /^[yne1-9]$/.test(event.key)) {
    if (!event.repeat && answer(card, event.key)) event.preventDefault();
    return;
  }
  if (!Object.hasOwn(KEYS, event.key)) return;
  event.preventDefault();
  KEYS[event.key]();
});

on.checked = kept("keys") !== "off";
on.addEventListener("change", () => kept("keys", on.checked ? "on" : "off"));
document.querySelector("[data-keys-open]").addEventListener("click", () => dialog.showModal());
if (location.hash === "#q") search();
if (location.hash === "#requests-title") toRequests();

// On narrow screens the filters are folded, unless one is in use.
const fold = document.querySelector("[data-fold]");
const narrow = matchMedia("(width < 48rem)");
function foldAway() {
  fold.open = !narrow.matches || fold.dataset.fold === "used";
}
if (fold) {
  foldAway();
  narrow.addEventListener("change", foldAway);
}

// Themes: the system's, light, dark, and round again.

const THEMES = ["system", "light", "dark"];
const root = document.documentElement;
const name = document.querySelector("[data-theme-name]");

function show(theme) {
  if (theme === "system") delete root.dataset.theme;
  else root.dataset.theme = theme;
  name.textContent = `Theme: ${theme}`;
}

show(root.dataset.theme ?? "system");
document.querySelector("[data-theme-switch]").addEventListener("click", () => {
  const theme = THEMES[(THEMES.indexOf(root.dataset.theme ?? "system") + 1) % THEMES.length];
  kept("theme", theme);
  show(theme);
});
