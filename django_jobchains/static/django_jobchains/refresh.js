/* Keeps what an element shows up to date.

   <p data-jobchains-refresh-of="ID">…<button>…<span role="status"></p>      (admin/django_jobchains/refresh.html)
   <div id="ID" data-jobchains-refresh="URL" data-jobchains-refresh-seconds="10">

   URL returns a page, of which the element with the same id is used, or a part of a page. If that element has no data-jobchains-refresh,
   it changes no more, and the refresh is paused. Elements with a data-jobchains-key keep the focus, stay open and keep their scroll
   position. The translated texts are in the page. Without this script, the page has a link. */

"use strict";

(function () {
  const SECONDS = 10;
  const MAX_SECONDS = 300;
  const TIMEOUT_SECONDS = 30;

  class Refresher {
    constructor(element, controls) {
      this.element = element;
      this.texts = controls.dataset;
      this.button = controls.querySelector("button");
      this.note = controls.querySelector("[role=status]");
      this.labels = { pause: this.button.textContent, resume: this.button.dataset.textResume };
      this.seconds = Number(element.dataset.jobchainsRefreshSeconds) || SECONDS;
      this.failures = 0;
      this.isPaused = false;
      this.isBusy = false;
      this.timer = null;
    }

    start() {
      this.button.hidden = false;
      this.button.addEventListener("click", () => (this.isPaused ? this.resume() : this.pause("")));
      document.addEventListener("visibilitychange", () => this.schedule(document.hidden ? null : 0));
      this.schedule(this.seconds);
    }

    pause(text) {
      this.isPaused = true;
      this.button.textContent = this.labels.resume;
      this.announce(text);
      this.schedule(null);
    }

    resume() {
      this.isPaused = false;
      this.button.textContent = this.labels.pause;
      this.announce("");
      this.schedule(0);
    }

    /* Schedules the next refresh; null cancels it. */
    schedule(seconds) {
      clearTimeout(this.timer);
      if (seconds !== null && !this.isPaused && !document.hidden) {
        this.timer = setTimeout(() => this.refresh(), seconds * 1000);
      }
    }

    async refresh() {
      if (this.isBusy) {
        return;
      }
      this.isBusy = true;
      try {
        await this.load();
        this.failures = 0;
      } catch {
        this.failures += 1;
      } finally {
        this.isBusy = false;
      }
      if (!this.isPaused) {
        const seconds = Math.min(this.seconds * 2 ** this.failures, MAX_SECONDS);
        this.announce(this.failures ? this.texts.textFailed.replace("%(seconds)s", seconds) : this.waiting());
        this.schedule(seconds);
      }
    }

    async load() {
      const response = await fetch(this.element.dataset.jobchainsRefresh, {
        credentials: "same-origin",
        redirect: "manual", // a redirect to the login page ends the refresh
        signal: AbortSignal.timeout(TIMEOUT_SECONDS * 1000),
      });
      if (response.type === "opaqueredirect" || response.status === 401 || response.status === 403) {
        this.pause(this.texts.textEnded);
      } else if (!response.ok) {
        throw new Error(response.status);
      } else {
        this.show(await response.text());
      }
    }

    show(html) {
      if (this.isPaused || this.isInUse()) {
        return;
      }
      const page = new DOMParser().parseFromString(html, "text/html");
      const fresh = page.getElementById(this.element.id);
      const state = new ViewState(this.element);
      this.element.replaceChildren(...(fresh || page.body).childNodes);
      state.restore();
      if (fresh && !fresh.dataset.jobchainsRefresh) {
        this.pause("");
      }
    }

    /* Returns whether the user is typing, selecting or pressing something, which a refresh would undo. */
    isInUse() {
      const selection = document.getSelection();
      const isSelecting = selection && !selection.isCollapsed && selection.containsNode(this.element, true);
      const fields = [...this.element.querySelectorAll("input:not([type=hidden]), textarea")];
      const isTyping = fields.some((field) => field.value !== field.defaultValue);
      return isSelecting || isTyping || this.element.querySelector(":active") !== null;
    }

    waiting() {
      return this.isInUse() ? this.texts.textWaiting : "";
    }

    /* Changes the text only if it differs, so that screen readers do not repeat it. */
    announce(text) {
      if (this.note.textContent !== text) {
        this.note.textContent = text;
      }
    }
  }

  /* The focus, open details and scroll positions of an element, to restore them after a refresh. */
  class ViewState {
    constructor(element) {
      this.element = element;
      this.scroll = [window.scrollX, window.scrollY];
      this.focus = element.contains(document.activeElement) ? keyOf(document.activeElement) : null;
      // Several links may have the same URL.
      this.place = withKey(element, this.focus).indexOf(document.activeElement);
      this.open = new Map(keyed(element).filter(isDetails).map((part) => [keyOf(part), part.open]));
      this.left = new Map(keyed(element).filter((part) => part.scrollLeft).map((part) => [keyOf(part), part.scrollLeft]));
    }

    restore() {
      for (const part of keyed(this.element)) {
        const key = keyOf(part);
        if (isDetails(part) && this.open.has(key)) {
          part.open = this.open.get(key);
        }
        if (this.left.has(key)) {
          part.scrollLeft = this.left.get(key);
        }
      }
      const focusable = withKey(this.element, this.focus);
      focusable[Math.min(this.place, focusable.length - 1)]?.focus({ preventScroll: true });
      window.scrollTo(...this.scroll);
    }
  }

  function isDetails(part) {
    return part.tagName === "DETAILS";
  }

  function keyed(element) {
    return [...element.querySelectorAll("[data-jobchains-key], [id], a[href]")];
  }

  /* Identifies an element by its key, id or URL. */
  function keyOf(part) {
    return part.dataset.jobchainsKey || part.id || part.getAttribute("href");
  }

  function withKey(element, key) {
    return keyed(element).filter((part) => keyOf(part) === key);
  }

  for (const controls of document.querySelectorAll("[data-jobchains-refresh-of]")) {
    const element = document.getElementById(controls.dataset.jobchainsRefreshOf);
    if (element && element.dataset.jobchainsRefresh) {
      new Refresher(element, controls).start();
    }
  }
})();
