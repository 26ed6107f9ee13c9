// Desktop notifications of open requests while the page is hidden. The browser is asked for permission only when the
// user presses the button.

const button = document.querySelector("[data-notify]");
const count = document.querySelector('[data-live="requests-count"]');
const LABELS = { default: "Notify me on this desktop", granted: "Desktop notifications are on", denied: "This browser blocks notifications" };

function open() {
  return Number(/^\d+/.exec(count.textContent.trim())?.[0] ?? 0);
}

function show() {
  if (!button || !("Notification" in window)) return;
  button.hidden = false;
  button.textContent = LABELS[Notification.permission];
  button.disabled = Notification.permission !== "default";
}

button?.addEventListener("click", async () => {
  await Notification.requestPermission();
  show();
});

let known = open();

new MutationObserver(() => {
  const now = open();
  if (now > known && document.hidden && window.Notification?.permission === "granted") {
    const told = new Notification(count.textContent.trim(), { tag: "keephold-requests", icon: "/static/icon-requests.svg" });
    told.addEventListener("click", () => { window.focus(); told.close(); });
  }
  known = now;
}).observe(count, { childList: true, characterData: true, subtree: true });

show();
