// Runs before the page is drawn, so that nobody sees the other theme first. Everything else is in live.js.
document.documentElement.dataset.js = "";
try {
  const theme = localStorage.getItem("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* storage is turned off: the system's theme it is */ }
