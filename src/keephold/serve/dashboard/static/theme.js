// Runs before the page is drawn, so that the other theme never flashes. Everything else is in live.js.
document.documentElement.dataset.js = "";
try {
  const theme = localStorage.getItem("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* storage is turned off: use the system's theme */ }
