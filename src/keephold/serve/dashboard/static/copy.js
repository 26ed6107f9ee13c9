// Buttons that copy a text. `data-copy` names the element; the token, which pages do not show, is fetched when pressed.

const TOKEN = "<the token>";
const TOLD = 2000;

document.addEventListener("click", async ({ target }) => {
  const button = target.closest("[data-copy]");
  if (!button) return;
  let text = document.getElementById(button.dataset.copy).textContent;
  const label = button.textContent;
  try {
    if (text.includes(TOKEN)) text = text.replace(TOKEN, await token());
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Could not be copied";
  }
  setTimeout(() => { button.textContent = label; }, TOLD);
});

async function token() {
  const response = await fetch("/do/token", { method: "POST", body: new URLSearchParams() });
  if (!response.ok) throw new Error(response.statusText);
  return response.text();
}
