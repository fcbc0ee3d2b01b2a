// The site's behaviour: colours, the menu on a phone, "On this page" and the search.
"use strict";

const byId = (id) => document.getElementById(id);

byId("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const order = dark ? ["auto", "light", "dark"] : ["auto", "dark", "light"];
  root.dataset.theme = order[(order.indexOf(root.dataset.theme) + 1) % 3];
  localStorage.setItem("theme", root.dataset.theme);
  byId("theme").title = root.dataset.theme;
});

byId("menu").addEventListener("click", () => {
  const shown = byId("tree").classList.toggle("shown");
  byId("menu").setAttribute("aria-expanded", shown);
  scrollTo(0, 0);
});
const current = document.querySelector("#tree [aria-current]");
if (current && getComputedStyle(byId("tree")).position === "sticky") {
  byId("tree").scrollTop = current.offsetTop - innerHeight / 2;
}

const contents = document.querySelector(".on-this-page");
if (contents) {
  contents.open = matchMedia("(min-width: 72em)").matches;
  const links = [...contents.querySelectorAll("a")];
  const targets = links.map((link) => byId(decodeURIComponent(link.hash.slice(1))));
  const mark = () => {
    let here = -1;
    targets.forEach((target, i) => {
      if (target && target.getBoundingClientRect().top < 90) here = i;
    });
    links.forEach((link, i) => link.classList.toggle("here", i === here));
  };
  addEventListener("scroll", mark, {passive: true});
  mark();
}

// The search. search-index.js sets octavoSearch: [title, heading, address, text] of each section.
const field = byId("search");
const results = byId("results");
let chosen = -1;

function withIndex(then) {
  if (window.octavoSearch) return then();
  const script = document.createElement("script");
  script.src = "search-index.js";
  script.onload = then;
  document.head.append(script);
}

function score(entry, words) {
  const [title, heading, , text] = entry.lower;
  let sum = 0;
  for (const word of words) {
    const inTitle = title.includes(word), inHeading = heading.includes(word);
    const place = text.indexOf(word);
    if (!inTitle && !inHeading && place < 0) return 0;
    sum += (inHeading ? 20 : 0) + (inTitle ? 10 : 0) + (place >= 0 ? 3 : 0);
    if (heading === word || title === word) sum += 60;
    if (heading.endsWith("::" + word)) sum += 40;
  }
  return sum;
}

function marked(text, words) {
  const parts = document.createElement("span");
  const pattern = words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|");
  text.split(new RegExp(`(${pattern})`, "i")).forEach((part, i) => {
    parts.append(i % 2 ? Object.assign(document.createElement("b"), {textContent: part}) : part);
  });
  return parts;
}

function snippet(entry, words) {
  const places = words.map((word) => entry.lower[3].indexOf(word)).filter((place) => place >= 0);
  const start = places.length ? Math.max(0, Math.min(...places) - 40) : 0;
  return (start ? "…" : "") + entry[3].slice(start, start + 150) + (entry[3].length > start + 150 ? "…" : "");
}

function show() {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  results.replaceChildren();
  chosen = -1;
  results.hidden = words.length === 0;
  if (results.hidden) return;
  for (const entry of octavoSearch) entry.lower ??= entry.map((text) => text.toLowerCase());
  const found = octavoSearch.map((entry) => [score(entry, words), entry]).filter(([sum]) => sum > 0)
    .sort((a, b) => b[0] - a[0]).slice(0, 25);
  for (const [, entry] of found) {
    const link = Object.assign(document.createElement("a"), {href: entry[2]});
    const name = entry[1] && entry[1] !== entry[0] ? `${entry[0]} › ${entry[1]}` : entry[0];
    const small = document.createElement("small");
    small.append(marked(snippet(entry, words), words));
    link.append(marked(name, words), small);
    const item = document.createElement("li");
    item.append(link);
    results.append(item);
  }
  if (!found.length) {
    const none = document.createElement("p");
    none.textContent = "No page contains all of these words.";
    results.append(none);
  }
}

field.addEventListener("focus", () => withIndex(() => {}));
field.addEventListener("input", () => withIndex(show));
field.addEventListener("keydown", (event) => {
  const links = [...results.querySelectorAll("a")];
  if (event.key === "Escape") {
    results.hidden = true;
    field.blur();
  } else if (event.key === "Enter" && links.length) {
    location.href = links[Math.max(chosen, 0)].href;
  } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && links.length) {
    chosen = (chosen + (event.key === "ArrowDown" ? 1 : links.length - 1) + (chosen < 0 && event.key === "ArrowUp")) % links.length;
    links.forEach((link, i) => link.classList.toggle("chosen", i === chosen));
    links[chosen].scrollIntoView({block: "nearest"});
    event.preventDefault();
  }
});
document.addEventListener("click", (event) => {
  if (!event.target.closest(".search")) results.hidden = true;
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) {
    field.focus();
    event.preventDefault();
  }
});
if (new URLSearchParams(location.search).get("q")) {
  field.value = new URLSearchParams(location.search).get("q");
  withIndex(show);
}
