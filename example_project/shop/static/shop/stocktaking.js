"use strict";

// Shows the progress of a job: asks for its state once a second, until it has ended.
const SECONDS = 1;
const panel = document.getElementById("stocktaking");

function show(state) {
  const badge = panel.querySelector("[data-status]");
  badge.textContent = state.status;
  badge.className = `badge ${state.status}`;
  panel.querySelector("[data-text]").textContent = state.text;
  panel.querySelector("progress").value = state.fraction;
  panel.querySelector("form").hidden = state.is_finished;
}

async function follow() {
  try {
    const answer = await fetch(panel.dataset.url);
    if (answer.ok) {
      const state = await answer.json();
      show(state);
      if (state.is_finished) return;
    }
  } catch {
    // The server may be restarting: try again.
  }
  window.setTimeout(follow, SECONDS * 1000);
}

follow();
