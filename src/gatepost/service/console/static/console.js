// Live parts and long work. Every page works without this file: it only saves reloading and pressing a button again and again.
// What it puts into a page comes from the server, escaped there; it builds no markup of its own.
"use strict";

// A live part: <div data-refresh="/console/…" data-every="3000">. Fetched while the page is visible and not paused. What comes
// replaces its content, or with data-into that of the element with this id; it ends when the part is gone from the page.
function refresh(part) {
  const every = Number(part.dataset.every) || 3000;
  let failures = 0;

  async function once() {
    if (document.hidden || part.dataset.paused === "true" || !part.isConnected || marked(part)) return;
    try {
      const answer = await fetch(part.dataset.refresh, { credentials: "same-origin", redirect: "manual" });
      if (answer.type === "opaqueredirect" || answer.status === 401) {
        location.reload(); // the session is over: the server says where to go
        return;
      }
      if (!answer.ok) throw new Error(String(answer.status));
      put(document.getElementById(part.dataset.into) || part, await answer.text());
      failures = 0;
      mark(part, false);
    } catch {
      failures += 1;
      mark(part, true);
    }
  }

  async function loop() {
    if (!part.isConnected) {
      document.removeEventListener("visibilitychange", once);
      return;
    }
    await once();
    setTimeout(loop, every * Math.min(10, 1 + failures));
  }

  document.addEventListener("visibilitychange", once);
  setTimeout(loop, every);
}

// Replace what a part holds; whoever reads with the keyboard stays where they are.
function put(part, text) {
  const focused = document.activeElement;
  const key = part.contains(focused) ? named(focused) : null;
  const opened = [...part.querySelectorAll("details[open][id]")].map((one) => one.id);
  const scrolled = new Map([...part.querySelectorAll(".table")].map((one, place) => [place, one.scrollLeft]));
  part.innerHTML = text;
  part.dataset.refreshes = String(Number(part.dataset.refreshes || 0) + 1);
  for (const id of opened) {
    const again = document.getElementById(id);
    if (again) again.open = true;
  }
  [...part.querySelectorAll(".table")].forEach((one, place) => { one.scrollLeft = scrolled.get(place) || 0; });
  bind(part);
  if (key) {
    const again = [...part.querySelectorAll("a, button, summary, [tabindex]")].find((one) => named(one) === key);
    if (again) again.focus();
  }
}

// What tells a control apart from the others of its part, before and after.
function named(element) {
  return element.id || element.getAttribute("href") || element.getAttribute("aria-label");
}

// Somebody marks text in it, perhaps to copy an id: what is marked stays.
function marked(part) {
  const selection = document.getSelection();
  return selection !== null && !selection.isCollapsed && part.contains(selection.anchorNode);
}

// Old figures must not pass for new ones.
function mark(part, stale) {
  const says = document.querySelector(`[data-stale-for="${part.id}"]`);
  if (says) says.hidden = !stale;
}

// A button that stops a live part: <button data-pause-for="id" hidden>.
function pausable(button) {
  const part = document.getElementById(button.dataset.pauseFor);
  if (!part) return;
  button.hidden = false;
  button.addEventListener("click", () => {
    const paused = part.dataset.paused !== "true";
    part.dataset.paused = String(paused);
    button.setAttribute("aria-pressed", String(paused));
  });
}

// Long work in steps: <div data-steps> holds a form for the next step; it is sent again and again until none is left or one stops it.
function steps(part) {
  let stopped = false;
  part.addEventListener("click", (event) => {
    if (event.target.closest("[data-stop]")) {
      stopped = true;
      event.preventDefault();
      part.querySelectorAll("[data-stop]").forEach((one) => { one.hidden = true; });
      part.querySelectorAll("[data-go-on]").forEach((one) => { one.hidden = false; });
    }
  });
  part.addEventListener("submit", (event) => {
    event.preventDefault();
    stopped = false;
    run();
  });

  async function run() {
    while (!stopped) {
      const form = part.querySelector("form[data-step]");
      if (!form) return;
      part.querySelectorAll("[data-stop]").forEach((one) => { one.hidden = false; });
      part.querySelectorAll("[data-go-on]").forEach((one) => { one.hidden = true; });
      const body = new URLSearchParams(new FormData(form));
      body.set("part", "1");
      let answer;
      try {
        answer = await fetch(form.action, { method: "POST", body, credentials: "same-origin", redirect: "manual" });
      } catch {
        answer = null;
      }
      if (!answer || !answer.ok) {
        // The step may have been done; the form holds what was before it, and doing it again takes nothing twice.
        part.querySelectorAll("[data-stop]").forEach((one) => { one.hidden = true; });
        part.querySelectorAll("[data-go-on]").forEach((one) => { one.hidden = false; });
        part.querySelectorAll("[data-broken]").forEach((one) => { one.hidden = false; });
        return;
      }
      put(part, await answer.text());
      if (stopped) part.querySelectorAll("[data-go-on]").forEach((one) => { one.hidden = false; });
    }
  }
  run();
}

function bind(root) {
  root.querySelectorAll("[data-refresh]").forEach(refresh);
  root.querySelectorAll("[data-pause-for]").forEach(pausable);
  root.querySelectorAll("[data-steps]").forEach(steps);
}

bind(document);
