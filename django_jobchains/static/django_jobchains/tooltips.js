/* Shows the <title> of an element with data-jobchains-tooltip at once, while the pointer is on it.

   Without this script, the browser shows it after a while. Screen readers read the table below the chart. */

"use strict";

(function () {
  const tooltip = document.createElement("div");
  tooltip.className = "jobchains-tooltip";
  tooltip.setAttribute("aria-hidden", "true");
  tooltip.hidden = true;
  document.body.append(tooltip);

  function show(element) {
    const title = element.querySelector("title");
    if (title) {
      // Removed, so that the browser does not show it as well.
      element.dataset.jobchainsTooltip = title.textContent;
      title.remove();
    }
    tooltip.textContent = element.dataset.jobchainsTooltip;
    tooltip.hidden = false;
    const bar = element.getBoundingClientRect();
    const own = tooltip.getBoundingClientRect();
    const left = bar.left + (bar.width - own.width) / 2;
    const most = document.documentElement.clientWidth - own.width - 4;
    tooltip.style.left = `${Math.max(4, Math.min(left, most))}px`;
    tooltip.style.top = `${Math.max(4, bar.top - own.height - 4)}px`;
  }

  document.addEventListener("pointerover", (event) => {
    const element = event.target.closest("[data-jobchains-tooltip]");
    if (element) {
      show(element);
    } else {
      tooltip.hidden = true;
    }
  });
  document.addEventListener("scroll", () => (tooltip.hidden = true), { capture: true, passive: true });
})();
