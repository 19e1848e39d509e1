"use strict";

// Follows an order: fetches its page again and replaces the part that changes. Without scripts, the page reloads.
const SECONDS = 1;

async function follow() {
  const shown = document.getElementById("progress");
  try {
    const answer = await fetch(window.location.href);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("progress");
    if (fresh && fresh.innerHTML !== shown.innerHTML) shown.replaceChildren(...fresh.childNodes);
    if (fresh && fresh.dataset.finished === "yes") return;
  } catch {
    // The server may be restarting: try again.
  }
  window.setTimeout(follow, SECONDS * 1000);
}

window.setTimeout(follow, SECONDS * 1000);
