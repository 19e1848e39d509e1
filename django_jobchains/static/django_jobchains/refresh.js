/* Keeps what an element shows up to date.

   <p data-jobchains-refresh-of="ID">…<button>…<span role="status"></p>      (admin/django_jobchains/refresh.html)
   <div id="ID" data-jobchains-refresh="URL" data-jobchains-refresh-seconds="10">

   URL answers with a page or a part of one: of it the element with the same id counts, or else all of it. What has a data-jobchains-key
   keeps the focus, and stays open or scrolled. The words are in the page, translated. Without this script the page has a link. */

"use strict";

(function () {
  const SECONDS = 10;
  const MOST_SECONDS = 300;
  const TIMEOUT_SECONDS = 30;

  class Refresher {
    constructor(element, controls) {
      this.element = element;
      this.texts = controls.dataset;
      this.button = controls.querySelector("button");
      this.note = controls.querySelector("[role=status]");
      this.labels = { stop: this.button.textContent, resume: this.button.dataset.textResume };
      this.seconds = Number(element.dataset.jobchainsRefreshSeconds) || SECONDS;
      this.failures = 0;
      this.isStopped = false;
      this.isBusy = false;
      this.timer = null;
    }

    start() {
      this.button.hidden = false;
      this.button.addEventListener("click", () => (this.isStopped ? this.resume() : this.stop("")));
      document.addEventListener("visibilitychange", () => this.plan(document.hidden ? null : 0));
      this.plan(this.seconds);
    }

    stop(text) {
      this.isStopped = true;
      this.button.textContent = this.labels.resume;
      this.tell(text);
      this.plan(null);
    }

    resume() {
      this.isStopped = false;
      this.button.textContent = this.labels.stop;
      this.tell("");
      this.plan(0);
    }

    /* null: not at all. */
    plan(seconds) {
      clearTimeout(this.timer);
      if (seconds !== null && !this.isStopped && !document.hidden) {
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
      if (!this.isStopped) {
        const seconds = Math.min(this.seconds * 2 ** this.failures, MOST_SECONDS);
        this.tell(this.failures ? this.texts.textFailed.replace("%(seconds)s", seconds) : this.waiting());
        this.plan(seconds);
      }
    }

    async load() {
      const answer = await fetch(this.element.dataset.jobchainsRefresh, {
        credentials: "same-origin",
        redirect: "manual", // to the page where one logs in
        signal: AbortSignal.timeout(TIMEOUT_SECONDS * 1000),
      });
      if (answer.type === "opaqueredirect" || answer.status === 401 || answer.status === 403) {
        this.stop(this.texts.textEnded);
      } else if (!answer.ok) {
        throw new Error(answer.status);
      } else {
        this.show(await answer.text());
      }
    }

    show(html) {
      if (this.isStopped || this.isInUse()) {
        return;
      }
      const page = new DOMParser().parseFromString(html, "text/html");
      const fresh = page.getElementById(this.element.id) || page.body;
      const kept = new Kept(this.element);
      this.element.replaceChildren(...fresh.childNodes);
      kept.restore();
    }

    /* Somebody writes, selects or presses something in it: nothing of that is taken away. */
    isInUse() {
      const selection = document.getSelection();
      const isSelecting = selection && !selection.isCollapsed && selection.containsNode(this.element, true);
      const fields = [...this.element.querySelectorAll("input:not([type=hidden]), textarea")];
      const isWriting = fields.some((field) => field.value !== field.defaultValue);
      return isSelecting || isWriting || this.element.querySelector(":active") !== null;
    }

    waiting() {
      return this.isInUse() ? this.texts.textWaiting : "";
    }

    /* Said aloud once, not each time. */
    tell(text) {
      if (this.note.textContent !== text) {
        this.note.textContent = text;
      }
    }
  }

  /* What somebody looking at it did to an element, to be done again to what took its place. */
  class Kept {
    constructor(element) {
      this.element = element;
      this.scroll = [window.scrollX, window.scrollY];
      this.focus = element.contains(document.activeElement) ? keyOf(document.activeElement) : null;
      this.open = new Map(keyed(element).filter(isFolding).map((part) => [keyOf(part), part.open]));
      this.left = new Map(keyed(element).filter((part) => part.scrollLeft).map((part) => [keyOf(part), part.scrollLeft]));
    }

    restore() {
      for (const part of keyed(this.element)) {
        const key = keyOf(part);
        if (isFolding(part) && this.open.has(key)) {
          part.open = this.open.get(key);
        }
        if (this.left.has(key)) {
          part.scrollLeft = this.left.get(key);
        }
        if (key === this.focus) {
          part.focus({ preventScroll: true });
        }
      }
      window.scrollTo(...this.scroll);
    }
  }

  function isFolding(part) {
    return part.tagName === "DETAILS";
  }

  function keyed(element) {
    return [...element.querySelectorAll("[data-jobchains-key], [id], a[href]")];
  }

  /* By its key, or its id, or where it leads. */
  function keyOf(part) {
    return part.dataset.jobchainsKey || part.id || part.getAttribute("href");
  }

  for (const controls of document.querySelectorAll("[data-jobchains-refresh-of]")) {
    const element = document.getElementById(controls.dataset.jobchainsRefreshOf);
    if (element && element.dataset.jobchainsRefresh) {
      new Refresher(element, controls).start();
    }
  }
})();
