// The debugger: a form that subscribes with an EventSource, a form that publishes, and
// below them the list of subscriptions.

const SHOWN = 200; // the number of updates kept on the page

const $ = (id) => document.getElementById(id);
const json = (response) => response.json();
const text = (response) => response.text();
const [config, failure] = await ask("config.json", {}, json);
if (!config) {
  say("refused", `${failure}: load the page again`);
  await new Promise(() => {}); // the buttons stay disabled
}
let source = null; // the EventSource of the present subscription
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

// EventSource cannot send headers, so subscribing sends the token in a cookie; publishing
// sends it in a header.
function setCookie() {
  const token = $("token").value.trim();
  const age = token ? "" : "; Max-Age=0";
  const secure = location.protocol === "https:" ? "; Secure" : "";
  document.cookie = `${config.cookie}=${token}; Path=${config.hub}; SameSite=Strict${secure}${age}`;
}

function authorization() {
  const token = $("token").value.trim();
  return token ? { Authorization: `Bearer ${token}` } : {};
}

function unsubscribe(state, text) {
  ending.abort();
  ending = new AbortController();
  source?.close();
  source = null;
  $("unsubscribe").disabled = true;
  $("there").closest("div").hidden = true; // it may list this subscription
  say(state, text);
}

$("subscribe").addEventListener("submit", async (event) => {
  event.preventDefault();
  unsubscribe("connecting", "connecting…");
  $("unsubscribe").disabled = false;
  $("updates").replaceChildren();
  $("count").textContent = received = 0;
  setCookie();
  const url = new URL(config.hub, location.href);
  for (const topic of $("topics").value.split("\n").filter(Boolean)) url.searchParams.append($("type").value, topic);
  const cursor = $("cursor").value.trim();
  if (cursor) url.searchParams.set("last_event_id", cursor);
  const { signal } = ending;
  const start = await preceding(url, signal);
  if (signal.aborted) return;
  source = new EventSource(url);
  source.last = start; // the id of the last update that it received
  source.describe = describer(url, signal);
  source.onmessage = show;
  // An update may have the type "open" or "error".
  source.onopen = (event) => (event.data === undefined ? say("open", "subscribed") : show(event));
  source.onerror = async (event) => {
    if (event.data !== undefined) return show(event);
    if (source.readyState !== EventSource.CLOSED) return say("connecting", "connecting again…");
    // EventSource does not report why it was refused, so send the request again.
    const [, failure] = await head(url, signal, "Date");
    if (!signal.aborted) unsubscribe("refused", failure || "the browser has given up: subscribe again");
  };
  // An event with a type reaches only the listeners for that type.
  listen(document.forms.publish.type.value);
  listen("mercure");
});

$("unsubscribe").addEventListener("click", () => unsubscribe("closed", "not subscribed"));

// Return the id of the update before the stream of a URL, or null if it is not known.
async function preceding(url, signal) {
  let id = null;
  if (url.searchParams.has("last_event_id")) [id] = await head(url, signal, "Mercure-Last-Event-ID");
  else if (config.subscriptions) {
    const [link] = await head(`${config.hub}/subscriptions`, signal, "Link");
    id = /last-event-id="((?:[^"\\]|\\.)*)"/.exec(link)?.[1].replace(/\\(.)/g, "$1");
  }
  // It is UTF-8, of which a browser takes each byte for a character.
  return id ? new TextDecoder().decode(Uint8Array.from(id, (byte) => byte.charCodeAt(0))) : null;
}

// Return a field of the head of a response, and "".  Return null and the reason instead
// if there is no such response.
async function head(url, signal, name) {
  const read = new AbortController(); // ends the response, of which the rest is not needed
  const options = { headers: { Prefer: "wait=0" }, signal: AbortSignal.any([signal, read.signal]) };
  const answer = await ask(url, options, ({ headers }) => headers.get(name));
  read.abort();
  return answer;
}

// Return a function that shows topics and privacy of the updates on the page.  An event
// has neither, so it asks for the same updates again, with their metadata.
function describer(url, signal) {
  const again = new URL(url);
  const options = { headers: { Prefer: "wait=0, metadata" }, signal };
  let asking = false;
  return async () => {
    if (asking) return; // the loop below asks again
    asking = true;
    for (;;) {
      await new Promise((resolve) => setTimeout(resolve, 200)); // for several updates at once
      const items = [...$("updates").querySelectorAll("li:not([data-described])")];
      if (!items.length || signal.aborted) break;
      again.searchParams.set("last_event_id", items.at(-1).before ?? "");
      const [found, failure] = await ask(again, options, updates);
      if (signal.aborted) break;
      // Several updates may have one id, so compare all of the event, from the newest on.
      for (const { id, type, data, metadata } of found?.reverse() ?? []) {
        const item = items.find(
          ({ dataset, event }) =>
            !dataset.described && event.lastEventId === id && event.type === type && event.data === data,
        );
        if (!item) continue; // the page has no listener for its type, or it comes later
        item.querySelector("p").textContent = metadata.topics.join("\n");
        item.querySelector("em").hidden = !metadata.private;
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

function listen(type) {
  // These three have their listeners already.
  if (type && !["message", "open", "error"].includes(type)) source?.addEventListener(type, show);
}

function show(event) {
  const item = $("update").content.firstElementChild.cloneNode(true);
  item.event = event;
  item.before = source.last;
  source.last = event.lastEventId;
  item.querySelector("b").textContent = event.type;
  item.querySelector("span").textContent = event.lastEventId;
  item.querySelector("time").textContent = new Date().toLocaleTimeString();
  item.querySelector("pre").textContent = event.data;
  $("updates").prepend(item);
  while ($("updates").children.length > SHOWN) $("updates").lastChild.remove();
  $("count").textContent = ++received;
  source.describe();
}

$("publish").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = new FormData(event.target);
  const body = new URLSearchParams();
  for (const topic of form.get("topic").split("\n").filter(Boolean)) body.append("topic", topic);
  for (const name of ["data", "type", "id"]) if (form.get(name)) body.append(name, form.get(name));
  if (form.get("private")) body.append("private", "on");
  listen(form.get("type"));
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
    return response.ok ? [await read(response), ""] : [null, await reason(response)];
  } catch (error) {
    return [null, error.message];
  }
}

// Return the hub's explanation of an error response; a proxy's has only a status.
async function reason(response) {
  const problem = await response.json().catch(() => ({}));
  return problem.detail ?? `${response.status} ${response.statusText}`;
}

// The forms have their listeners now.  Until here their buttons are disabled, because the
// browser itself would send the form, and load the page again.
for (const form of document.forms) form.querySelector("button").disabled = false;
