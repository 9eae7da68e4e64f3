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
let ending = new AbortController(); // aborted when it ends
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
  const { signal } = (ending = new AbortController());
  const [start, failure] = await preceding(url, signal);
  if (signal.aborted) return; // by a click meanwhile
  if (failure) return unsubscribe("refused", failure);
  source = new EventSource(url);
  source.onopen = () => say("open", "subscribed");
  source.onmessage = show;
  source.onerror = async () => {
    if (source.readyState !== EventSource.CLOSED) return say("connecting", "connecting again…");
    const [, failure] = await preceding(url, signal);
    if (!signal.aborted) unsubscribe("refused", failure || "the stream has ended");
  };
  source.describe = describer(url, start, signal);
  // An event with a type reaches only the listeners for that type.
  listen(document.forms.publish.type.value);
  listen("mercure");
});

$("unsubscribe").addEventListener("click", () => unsubscribe("closed", "not subscribed"));

// Return the id of the update before the stream of a URL, and the reason if it is
// refused.  EventSource tells neither.
async function preceding(url, signal) {
  const read = new AbortController(); // the headers suffice
  const options = { headers: { Prefer: "wait=0" }, signal: AbortSignal.any([signal, read.signal]) };
  const [header, failure] = await ask(url, options, ({ headers }) => headers.get("Mercure-Last-Event-ID"));
  read.abort();
  if (header === null) return ["earliest", failure]; // the history is empty
  // The header is UTF-8, of which a browser takes each byte for a character.
  return [new TextDecoder().decode(Uint8Array.from(header, (byte) => byte.charCodeAt(0))), failure];
}

// Return a function that shows topics and privacy of the updates on the page.  An event
// has neither, so it asks for the same updates again, with their metadata.
function describer(url, start, signal) {
  const again = new URL(url);
  let described = start; // the id of the last update that shows them
  let asking = false;
  return async () => {
    if (asking) return; // the loop below asks again
    asking = true;
    for (let asked = -1; asked < received && !signal.aborted; ) {
      asked = received;
      again.searchParams.set("last_event_id", described);
      const [events] = await ask(again, { headers: { Prefer: "wait=0, metadata" }, signal }, text);
      const items = [...$("updates").children];
      // Several updates may have one id, so compare all of the event, from the newest on.
      for (const block of (events ?? "").split("\n\n").reverse()) {
        const [metadata, id, type, data] = [": ", "id: ", "event: ", "data: "].map((name) =>
          block.split("\n").filter((line) => line.startsWith(name)).map((line) => line.slice(name.length)).join("\n"),
        );
        const item = items.find(
          ({ dataset, event }) =>
            !dataset.described && event.lastEventId === id && event.type === (type || "message") && event.data === data,
        );
        if (!item) continue; // the page has no listener for its type, or the event comes later
        const { topics, private: secret } = JSON.parse(metadata);
        item.querySelector("p").textContent = topics.join("\n");
        item.querySelector("em").hidden = !secret;
        item.dataset.described = true;
      }
      described = $("updates").querySelector("[data-described]")?.event.lastEventId ?? start;
    }
    asking = false;
  };
}

function listen(type) {
  // These three have their own listeners.
  if (type && !["message", "open", "error"].includes(type)) source?.addEventListener(type, show);
}

function show(event) {
  const item = $("update").content.firstElementChild.cloneNode(true);
  item.event = event;
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
  const [ids, failure] = await ask(config.hub, { method: "POST", headers: authorization(), body }, text);
  $("published").className = failure ? "error" : "";
  $("published").textContent = failure || ids;
});

$("refresh").addEventListener("click", async () => {
  const headers = { ...authorization(), Accept: "application/json" };
  const [list, failure] = await ask(`${config.hub}/subscriptions`, { headers }, json);
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
    return [null, String(error)];
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
