// Sets light or dark before the first paint. It is the one script that runs while the page loads.
"use strict";
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("pelton-theme");
  } catch {
    // Storage may be forbidden; the preference of the system decides then.
  }
  if (chosen === "light" || chosen === "dark") {
    document.documentElement.dataset.theme = chosen;
  }
})();
