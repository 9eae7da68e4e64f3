// The debugger: a form that subscribes, a form that publishes, and below them the list of
// subscriptions, what the hub says of the stream, and the updates.

import { explained, follow } from "./stream.js";
import { expiry, read, span } from "./token.js";

const SHOWN = 200; // the number of updates kept on the page
const SIGNALS = 20; // the number of signals

const $ = (id) => document.getElementById(id);
const json = (response) => response.json();
const text = (response) => response.text();
const [config, failure] = await ask("config.json", {}, json);
if (!config) {
  say("refused", `${failure}: load the page again`);
  await new Promise(() => {}); // the buttons stay disabled
}
let ending = new AbortController(); // aborted at the next click on Subscribe or Unsubscribe, and at a refusal
let received = 0; // the number of its updates

$("token").value = config.token;
if (config.token_command) {
  $("sign").querySelector("code").textContent = config.token_command;
  $("sign").hidden = false;
  $("sign").closest("details").open = true;
}
$("present").hidden = !config.subscriptions;
if (!config.classic) $("type").options[0].remove();

// Choosing a matcher type fills in an example that matches the topic of the publish form,
// unless the user has typed a pattern.
const examples = [...$("type").options].map((option) => option.dataset.example);

function exemplify() {
  const text = $("topics").value.trim();
  if (!text || examples.includes(text)) $("topics").value = $("type").selectedOptions[0].dataset.example;
}

exemplify();
$("type").addEventListener("change", exemplify);

function say(state, text) {
  $("state").dataset.state = state;
  $("state").textContent = text;
}

function authorization() {
  const token = $("token").value.trim();
  return token ? { Authorization: `Bearer ${token}` } : {};
}

// Show what the token says.
function showToken() {
  const token = $("token").value.trim();
  const found = token && read(token);
  const lines = found ? [...found.lines, expiry(found.expires)] : token ? ["is no token"] : [];
  $("grants").replaceChildren(...lines.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
}

showToken();
$("token").addEventListener("input", showToken);
setInterval(() => $("token").closest("details").open && showToken(), 1_000);

function unsubscribe(state, text) {
  ending.abort();
  ending = new AbortController();
  $("unsubscribe").disabled = true;
  $("there").closest("div").hidden = true; // it may list this subscription
  say(state, text);
}

$("subscribe").addEventListener("submit", async (event) => {
  event.preventDefault();
  unsubscribe("connecting", "connecting…");
  $("unsubscribe").disabled = false;
  $("updates").replaceChildren();
  $("signals").replaceChildren();
  $("signals").closest("section").hidden = true;
  $("count").textContent = received = 0;
  const url = new URL(config.hub, location.href);
  for (const topic of $("topics").value.split("\n").filter(Boolean)) url.searchParams.append($("type").value, topic);
  const cursor = $("cursor").value.trim();
  if (cursor) url.searchParams.set("last_event_id", cursor);
  const { signal } = ending;
  const describe = describer(url, signal);
  let last = ""; // the cursor before the next update
  const stream = new URL(url);
  stream.searchParams.set("signals", "1");
  const refusal = await follow(stream, {
    headers: authorization,
    signal,
    say,
    take(event) {
      if (event.signal) showSignal(event.signal);
      else show(event, last, describe);
      // A gap has the id that was asked for, even if the hub does not have it.
      last = event.signal?.type === "gap" ? event.signal.last_event_id : event.id;
    },
  });
  if (!signal.aborted) unsubscribe("refused", refusal);
});

$("unsubscribe").addEventListener("click", () => unsubscribe("closed", "not subscribed"));

// Return a function that shows topics and privacy of the updates on the page.  An event
// has neither, so it asks for the same updates again, with their metadata.
function describer(url, signal) {
  const again = new URL(url);
  let asking = false;
  return async () => {
    if (asking) return; // the loop below asks again
    asking = true;
    for (;;) {
      await new Promise((resolve) => setTimeout(resolve, 200)); // for several updates at once
      const items = [...$("updates").children].reverse(); // the oldest first
      const next = items.findIndex(({ dataset }) => !dataset.described);
      if (next < 0 || signal.aborted) break;
      const { before } = items[next];
      again.searchParams.set("last_event_id", before);
      const headers = { ...authorization(), Prefer: "wait=0, metadata" };
      const [found, failure] = await ask(again, { headers, signal }, updates);
      if (signal.aborted) break;
      // Several updates may have one id, so compare all of the event, in their order.  A
      // cursor is the position of the earliest update with its id (N115).
      const earliest = items.findIndex(({ event }) => event.id === before);
      const rest = items.slice(earliest < 0 ? next : Math.min(next, earliest + 1));
      for (const { id, type, data, metadata } of found ?? []) {
        const index = rest.findIndex(({ event }) => event.id === id && event.type === type && event.data === data);
        if (index < 0) continue; // it comes later
        const item = rest.splice(0, index + 1).at(-1);
        if (item.dataset.described) continue;
        item.querySelector("p").textContent = metadata.topics.join("\n");
        item.querySelector("em").hidden = !metadata.private;
        item.querySelector("time").textContent += `, ${delay(item.received - metadata.time)}`;
        item.dataset.described = true;
      }
      for (const item of items) {
        if (item.dataset.described) continue;
        item.querySelector("p").textContent = `topics and privacy unknown${failure && `: ${failure}`}`;
        item.dataset.described = true;
      }
    }
    asking = false;
  };
}

// Return how long after its publication an update has come, in words.
function delay(milliseconds) {
  return milliseconds < 0 ? `the hub's clock is ${span(-milliseconds)} ahead` : `${span(milliseconds)} after it was published`;
}

// Return the updates of a response to `Prefer: wait=0, metadata`.
async function updates(response) {
  if (!response.headers.get("Preference-Applied")?.includes("metadata")) {
    response.body.cancel(); // it may never end
    throw new Error("no metadata from this hub, or a proxy in front of it");
  }
  const blocks = (await text(response)).split("\n\n").map((block) => block.split("\n"));
  const found = blocks.map((lines) => {
    const field = (start) => lines.filter((line) => line.startsWith(start)).map((line) => line.slice(start.length)).join("\n");
    const metadata = /^\{/.test(field(": ")) && JSON.parse(field(": "));
    return { id: field("id: "), type: field("event: ") || "message", data: field("data: "), metadata };
  });
  return found.filter(({ metadata }) => metadata);
}

function show(event, before, describe) {
  const item = $("update").content.firstElementChild.cloneNode(true);
  item.event = event;
  item.before = before;
  item.received = Date.now();
  item.querySelector("b").textContent = event.type;
  item.querySelector("span").textContent = event.id;
  item.querySelector("time").textContent = new Date().toLocaleTimeString();
  item.querySelector("pre").textContent = event.data;
  $("updates").prepend(item);
  while ($("updates").children.length > SHOWN) $("updates").lastChild.remove();
  $("count").textContent = ++received;
  describe();
}

// Show what the hub says of the stream; the newest heartbeat replaces the one before.
function showSignal({ type, ...members }) {
  const item = $("signal").content.firstElementChild.cloneNode(true);
  item.dataset.type = type;
  if (type === "gap" && members.lost !== "nothing") item.className = "error";
  item.querySelector("b").textContent = type;
  item.querySelector("span").textContent = Object.entries(members).map(([name, value]) => `${name}: ${value}`).join(", ");
  item.querySelector("time").textContent = new Date().toLocaleTimeString();
  const list = $("signals");
  if (type === "heartbeat" && list.firstElementChild?.dataset.type === type) list.firstElementChild.remove();
  list.prepend(item);
  while (list.children.length > SIGNALS) list.lastChild.remove();
  list.closest("section").hidden = false;
}

$("publish").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = new FormData(event.target);
  const body = new URLSearchParams();
  for (const topic of form.get("topic").split("\n").filter(Boolean)) body.append("topic", topic);
  for (const name of ["data", "type", "id"]) if (form.get(name)) body.append(name, form.get(name));
  if (form.get("private")) body.append("private", "on");
  const [answer, failure] = await ask(config.hub, { method: "POST", headers: authorization(), body }, published);
  $("published").className = failure ? "error" : "";
  $("published").textContent = failure || answer;
});

// Return the ids in a response, and what it says of the receivers, with `tell_publishers`.
async function published(response) {
  const reach = response.headers.get("Hub-Process-Reach");
  return (await response.text()) + (reach ? `; on this process: ${reach}` : "");
}

$("token").addEventListener("input", () => ($("published").textContent = "")); // what it says of another token

$("refresh").addEventListener("click", async () => {
  const headers = { ...authorization(), Accept: "application/json" };
  const { signal } = ending;
  const [list, failure] = await ask(`${config.hub}/subscriptions`, { headers }, json);
  if (signal.aborted) return; // they are others now
  const subscriptions = list?.subscriptions ?? [];
  $("nobody").textContent = failure || "There are no subscriptions.";
  $("nobody").className = failure ? "error" : "";
  $("nobody").hidden = subscriptions.length > 0;
  $("there").closest("table").hidden = !subscriptions.length;
  $("there").closest("div").hidden = false;
  $("there").replaceChildren();
  for (const { match_type, match, topic, subscriber, payload } of subscriptions) {
    const row = $("there").insertRow();
    for (const text of [match_type ?? "topic", match ?? topic, subscriber, payload === undefined ? "" : JSON.stringify(payload)])
      row.insertCell().textContent = text;
  }
});

// Return what `read` takes from a response, and "".  Return null and the reason instead
// if there is no such response.
async function ask(url, options, read) {
  try {
    const response = await fetch(url, options);
    return response.ok ? [await read(response), ""] : [null, await explained(response)];
  } catch (error) {
    return [null, error.message];
  }
}

// The forms have their listeners now.  Until here their buttons are disabled, because the
// browser itself would send the form, and load the page again.
for (const form of document.forms) form.querySelector("button").disabled = false;
