"use strict";
// Fragments come from templates that escape every text; numbers are set as text. Nothing here makes markup of data.

const EVERY_MS = 1000;
const byId = (id) => document.getElementById(id);
let fragmentsAt = 0;

async function ask(path, options) {
  const answer = await fetch(path, { cache: "no-store", ...options });
  if (!answer.ok) throw new Error((await answer.text()) || answer.statusText);
  return answer;
}

async function fill(id, path) {
  const made = new DOMParser().parseFromString(await (await ask(path)).text(), "text/html");
  byId(id).replaceChildren(...made.body.childNodes);
}

function say(failure) {
  byId("failure").textContent = failure;
}

function showNode(card, note) {
  card.querySelector(".numbers").textContent = note.text;
  card.querySelector(".where").textContent = note.where;
  card.querySelector(".time i").style.width = `${100 * note.share}%`;
}

function show(live) {
  byId("rate").textContent = live.rate;
  byId("count").textContent = live.count;
  byId("state").textContent = live.state;
  byId("state").dataset.state = live.state;
  byId("verdict").textContent = live.verdict;
  byId("run").textContent = { running: "Pause", paused: "Resume", waiting: "Run" }[live.state] || "Run again";
  say(live.failure);
  for (const [number, note] of Object.entries(live.nodes)) {
    const card = byId(`node-${number}`);
    if (card) showNode(card, note);
  }
}

async function refresh() {
  if (document.hidden) return; // the pipeline rests while nobody looks
  try {
    show(await (await ask("live")).json());
    if (Date.now() - fragmentsAt > 2 * EVERY_MS) {
      fragmentsAt = Date.now();
      await Promise.all([fill("figures", "figures"), fill("stages", "stages")]);
    }
  } catch {
    byId("state").textContent = "not connected";
    byId("state").dataset.state = "failed";
  }
}

async function search() {
  const place = byId("elements");
  place.setAttribute("aria-busy", "true");
  try {
    await fill("elements", `elements?number=${encodeURIComponent(byId("number").value || 0)}`);
  } catch (error) {
    const said = document.createElement("p");
    said.className = "error";
    said.textContent = error.message;
    place.replaceChildren(said);
  }
  place.setAttribute("aria-busy", "false");
}

function step(by) {
  byId("number").value = Math.max(0, Number(byId("number").value || 0) + by);
  search();
}

function point(event, on) {
  const from = event.target.closest("[data-node]");
  if (!from || from.dataset.node === "") return;
  for (const other of document.querySelectorAll(`[data-node="${from.dataset.node}"]`)) {
    other.classList.toggle("pointed", on);
  }
}

byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  search();
});
byId("previous").addEventListener("click", () => step(-1));
byId("next").addEventListener("click", () => step(1));
byId("run").addEventListener("click", async () => {
  await ask(byId("state").dataset.state === "running" ? "pause" : "run", { method: "POST" });
  refresh();
});
document.addEventListener("mouseover", (event) => point(event, true));
document.addEventListener("mouseout", (event) => point(event, false));
document.addEventListener("visibilitychange", refresh);
document.addEventListener("click", (event) => {
  const card = event.target.closest(".node");
  const column = card && document.querySelector(`.step[data-node="${card.dataset.node}"]`);
  if (column) column.scrollIntoView({ behavior: "smooth", inline: "center", block: "nearest" });
});
setInterval(refresh, EVERY_MS);
refresh();
search();
