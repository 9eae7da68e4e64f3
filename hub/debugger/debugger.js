// The debugger: a form that subscribes with an EventSource, a form that publishes, and
// below them the list of subscriptions.

const SHOWN = 200; // the number of updates kept on the page

const $ = (id) => document.getElementById(id);
const [config, failure] = await ask("config.json", {}, "json");
if (!config) {
  say("refused", `${failure}: load the page again`);
  await new Promise(() => {}); // the buttons stay disabled
}
let source = null;
let received = 0;

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

function unsubscribe() {
  source?.close();
  source = null;
  $("unsubscribe").disabled = true;
  say("closed", "not subscribed");
}

$("subscribe").addEventListener("submit", (event) => {
  event.preventDefault();
  unsubscribe();
  setCookie();
  const url = new URL(config.hub, location.href);
  for (const topic of $("topics").value.split("\n").filter(Boolean)) url.searchParams.append($("type").value, topic);
  const cursor = $("cursor").value.trim();
  if (cursor) url.searchParams.set("last_event_id", cursor);
  source = new EventSource(url);
  say("connecting", "connecting…");
  source.onopen = () => say("open", "subscribed");
  source.onmessage = show;
  source.onerror = async () => {
    if (source.readyState !== EventSource.CLOSED) return say("connecting", "connecting again…");
    // EventSource does not report why it was refused, so send the request again.
    const stop = new AbortController();
    const response = await fetch(url, { signal: stop.signal }).catch(() => null);
    say("refused", response && !response.ok ? await reason(response) : "refused");
    stop.abort();
  };
  // An event with a type reaches only the listeners for that type.
  listen(document.forms.publish.type.value);
  listen("mercure");
  $("unsubscribe").disabled = false;
});

$("unsubscribe").addEventListener("click", unsubscribe);

function listen(type) {
  // These three have their own listeners.
  if (type && !["message", "open", "error"].includes(type)) source?.addEventListener(type, show);
}

function show(event) {
  const item = document.createElement("li");
  const header = item.appendChild(document.createElement("header"));
  header.appendChild(document.createElement("b")).textContent = event.type;
  header.appendChild(document.createElement("span")).textContent = event.lastEventId;
  header.appendChild(document.createElement("time")).textContent = new Date().toLocaleTimeString();
  item.appendChild(document.createElement("pre")).textContent = event.data;
  $("updates").prepend(item);
  while ($("updates").children.length > SHOWN) $("updates").lastChild.remove();
  $("count").textContent = ++received;
}

$("publish").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = new FormData(event.target);
  const body = new URLSearchParams();
  for (const topic of form.get("topic").split("\n").filter(Boolean)) body.append("topic", topic);
  for (const name of ["data", "type", "id"]) if (form.get(name)) body.append(name, form.get(name));
  if (form.get("private")) body.append("private", "on");
  listen(form.get("type"));
  const [ids, failure] = await ask(config.hub, { method: "POST", headers: authorization(), body }, "text");
  $("published").className = failure ? "error" : "";
  $("published").textContent = failure || ids;
});

$("refresh").addEventListener("click", async () => {
  const headers = { ...authorization(), Accept: "application/json" };
  const [list, failure] = await ask(`${config.hub}/subscriptions`, { headers }, "json");
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

// Return the body of a response, read as "json" or "text", and "".  Return null and the
// reason instead if there is no such response.
async function ask(url, options, form) {
  try {
    const response = await fetch(url, options);
    return response.ok ? [await response[form](), ""] : [null, await reason(response)];
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
