// A stream that is read with fetch.  EventSource would show neither the types that it has
// no listener for, nor why the hub refuses a stream.

const WAIT = 2_000; // milliseconds before the next attempt, unless the hub says otherwise
const SILENCE = 120_000; // milliseconds without a byte, until the hub says how often it sends a heartbeat

// Follow a URL, and reconnect with the cursor, until `signal` aborts or the hub refuses.
//   headers()           the headers of each request
//   say(state, text)    what has become of the connection
//   take(event)         an event, as { id, type, data }
// Returns why the hub refuses, or "".
export async function follow(url, { headers, signal, say, take }) {
  const place = new URL(url);
  let wait = WAIT;
  let silence = SILENCE;
  for (;;) {
    let reason = "";
    try {
      const response = await fetch(place, { headers: headers(), cache: "no-store", signal });
      if (!response.ok) {
        reason = await explained(response);
        if (response.status < 500 && response.status !== 429) return reason;
      } else if (!response.headers.get("Content-Type")?.startsWith("text/event-stream")) {
        return "the response is not an event stream";
      } else {
        say("open", "subscribed");
        for await (const { id, type, data, retry } of events(response.body, () => silence)) {
          if (id !== null) place.searchParams.set("last_event_id", id);
          if (retry) wait = Number(retry);
          if (data === null) continue;
          const news = signalIn(type, data);
          if (news?.type === "goodbye") reason = news.reason;
          if (news?.heartbeat) silence = 2 * news.heartbeat + 5_000;
          take({ id: id ?? "", type: type || "message", data, signal: news });
        }
      }
    } catch (error) {
      if (!signal.aborted) reason = error.message;
    }
    if (signal.aborted) return "";
    say("connecting", `connecting again…${reason && ` (${reason})`}`);
    await pause(wait * (0.5 + Math.random()), signal);
    if (signal.aborted) return "";
  }
}

// Yield the blocks of a stream with their fields, as the HTML standard says.
async function* events(body, silence) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const timer = setTimeout(() => reader.cancel(), silence());
      const { done, value } = await reader.read().finally(() => clearTimeout(timer));
      if (done) return;
      // A CR at the end may be the first half of a CRLF.
      const text = (rest + value).replace(/\r\n|\r(?!$)/g, "\n");
      const blocks = text.split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) yield fields(block);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function fields(block) {
  const found = { id: null, type: "", data: null, retry: "" };
  for (const line of block.split("\n")) {
    const [, name, value] = /^([^:]*):? ?(.*)$/s.exec(line);
    if (name === "data") found.data = found.data === null ? value : `${found.data}\n${value}`;
    else if (name === "id" && !value.includes("\0")) found.id = value;
    else if (name === "event") found.type = value;
    else if (name === "retry" && /^\d+$/.test(value)) found.retry = value;
  }
  return found;
}

// Return the members of a signal of the hub, or null if an event is none.
function signalIn(type, data) {
  if (type !== "mercure") return null;
  try {
    const members = JSON.parse(data);
    return ["identity", "gap", "position", "heartbeat", "goodbye"].includes(members.type) ? members : null;
  } catch {
    return null;
  }
}

// Return the hub's explanation of an error response; a proxy's has only a status.
export async function explained(response) {
  const problem = await response.json().catch(() => ({}));
  return problem.detail ?? `${response.status} ${response.statusText}`;
}

function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", resolve, { once: true });
  });
}
