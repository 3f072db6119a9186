// Fetches the parts of a page that change, every two seconds, while the page is visible.
"use strict";

(() => {
  const source = document.querySelector("[data-live]");
  const bar = document.querySelector("[data-live-switch]");
  if (!source || !bar) return;
  const button = bar.querySelector("button");
  const said = bar.querySelector("[role=status]");
  let isPaused = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  let isAsking = false;

  function say(text) {
    if (said.textContent !== text) said.textContent = text;
  }

  function show() {
    button.textContent = isPaused ? "Continue" : "Pause";
    button.setAttribute("aria-pressed", String(isPaused));
    say(isPaused ? "Paused." : "Live: every 2 seconds.");
  }

  async function refresh() {
    if (isPaused || isAsking || document.hidden) return;
    isAsking = true;
    try {
      const answer = await fetch(source.dataset.live, { credentials: "same-origin" });
      if (answer.status === 401) {
        isPaused = true;
        show();
        say("You are signed out. Load the page again.");
        return;
      }
      if (!answer.ok) throw new Error(String(answer.status));
      const { parts } = await answer.json();
      if (isPaused) return;
      // The server escapes these parts as it escapes the page itself.
      for (const [id, html] of Object.entries(parts)) {
        const holder = document.getElementById(id);
        if (holder && !holder.contains(document.activeElement.closest("a, summary"))) {
          holder.innerHTML = html;
        }
      }
      say("Live: every 2 seconds.");
    } catch {
      say("The service does not answer; trying again.");
    } finally {
      isAsking = false;
    }
  }

  button.addEventListener("click", () => {
    isPaused = !isPaused;
    show();
    refresh();
  });
  bar.hidden = false;
  show();
  setInterval(refresh, 2000);
})();
