// What must hold of every page of the console; read by browser.py.
"use strict";

function faultsOfPage() {
  const faults = [];
  const say = (what, element) => faults.push(element ? `${what}: ${element.outerHTML.slice(0, 160)}` : what);
  const shown = (element) => element.getClientRects().length > 0;

  if (!document.documentElement.lang) say("the page has no language");
  if (!document.title.trim()) say("the page has no title");
  if (document.querySelectorAll("main").length !== 1) say("the page has not exactly one main");
  if (document.querySelectorAll("h1").length !== 1) say("the page has not exactly one h1");
  const first = document.body.querySelector("a[href]");
  if (!first || !first.classList.contains("skip")) say("the first link does not skip to the content", first);

  let level = 0;
  for (const heading of document.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
    const now = Number(heading.tagName[1]);
    if (now > level + 1) say(`a heading of level ${now} follows one of level ${level}`, heading);
    level = now;
  }

  const named = (element) =>
    (element.getAttribute("aria-label") || "").trim() ||
    (element.getAttribute("aria-labelledby") || "").split(/\s+/).some((id) => id && document.getElementById(id)?.textContent.trim()) ||
    (element.labels && [...element.labels].some((label) => label.textContent.trim())) ||
    element.textContent.trim();
  for (const control of document.querySelectorAll("input:not([type=hidden]), select, textarea")) {
    const label = control.getAttribute("aria-label") || control.getAttribute("aria-labelledby") || control.labels?.length;
    if (!label) say("a field has no label", control);
  }
  for (const control of document.querySelectorAll("a[href], button, summary")) {
    if (shown(control) && !named(control)) say("a control has no name", control);
  }
  for (const picture of document.querySelectorAll("img, svg")) {
    const silent = picture.getAttribute("aria-hidden") === "true";
    if (!silent && !picture.getAttribute("alt") && !picture.getAttribute("aria-label") && !picture.getAttribute("aria-labelledby")) {
      say("a picture has no name", picture);
    }
  }
  for (const table of document.querySelectorAll("table")) {
    if (!table.caption || !table.caption.textContent.trim()) say("a table has no caption", table);
    for (const head of table.querySelectorAll("th")) if (!head.scope) say("a head of a table has no scope", head);
    const frame = table.closest(".table");
    if (!frame || frame.tabIndex !== 0 || !frame.getAttribute("aria-label")) say("a table is in no frame that scrolls with keys", table);
  }
  const ids = new Set();
  for (const element of document.querySelectorAll("[id]")) {
    if (ids.has(element.id)) say("an id is used twice", element);
    ids.add(element.id);
  }
  for (const element of document.querySelectorAll("[aria-describedby], [aria-labelledby]")) {
    const wanted = `${element.getAttribute("aria-describedby") || ""} ${element.getAttribute("aria-labelledby") || ""}`;
    for (const id of wanted.trim().split(/\s+/)) if (id && !document.getElementById(id)) say(`nothing has the id ${id}`, element);
  }

  const parse = (colour) => colour.match(/[\d.]+/g).map(Number);
  const groundOf = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const [r, g, b, a = 1] = parse(getComputedStyle(one).backgroundColor);
      if (a === 1) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const light = ([r, g, b]) => {
    const part = (value) => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const pale = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !shown(element) || element.closest("[disabled], svg")) continue;
    const style = getComputedStyle(element);
    const [one, other] = [light(parse(style.color)), light(groundOf(element))].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (other + 0.05);
    const least = parseFloat(style.fontSize) >= 24 ? 3 : 4.5;
    if (ratio < least) pale.add(`contrast ${ratio.toFixed(2)}: ${element.tagName} "${element.textContent.trim().slice(0, 40)}"`);
  }
  return [...faults, ...pale];
}
