#!/bin/sh
# fetch-event-source takes an event as read before it has all of it.
#
# Versions: @microsoft/fetch-event-source 2.0.1, eventsource 4.1.1, Node 20 or later.
#
# By the standard of Server-Sent Events, the id of an event becomes the last event id only with the blank line at its
# end.  If the connection breaks before that, a client asks for the event again.  fetch-event-source keeps the id as soon
# as it has read the line `id:`, so its next request asks for what follows, and that event is lost without an error.
# npm's `eventsource` does as the standard says.  Both get the same bytes below: event 1, a part of event 2, and the end
# of the connection.
#
# Output seen, as it is checked below:
#
#     eventsource: events 1; asks again with Last-Event-ID 1
#     fetch-event-source: events 1; asks again with Last-Event-ID 2
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init --yes > /dev/null
npm install --silent --no-audit --no-fund @microsoft/fetch-event-source@2.0.1 eventsource@4.1.1
cat > try.cjs <<'JS'
const { createServer } = require("node:http");

// A page's globals that fetch-event-source uses.
globalThis.window = globalThis;
globalThis.document = { hidden: false, addEventListener() {}, removeEventListener() {} };

const { fetchEventSource } = require("@microsoft/fetch-event-source");
const { EventSource } = require("eventsource");

const clients = {
  eventsource(url, read) {
    const source = new EventSource(url);
    source.onmessage = (event) => read(event.lastEventId);
  },
  "fetch-event-source"(url, read) {
    fetchEventSource(url, { onmessage: (event) => event.id && read(event.id) });
  },
};

async function told(follow) {
  const events = [];
  const again = await new Promise((resolve) => {
    let requests = 0;
    const server = createServer((request, response) => {
      if (requests++) return resolve(request.headers["last-event-id"]);
      response.writeHead(200, { "content-type": "text/event-stream" });
      response.write("retry: 10\nid: 1\ndata: one\n\n");
      setTimeout(() => response.write("id: 2\ndata: tw", () => setTimeout(() => response.destroy(), 300)), 300);
    });
    server.listen(0, "127.0.0.1", () => follow(`http://127.0.0.1:${server.address().port}/`, (id) => events.push(id)));
  });
  return `events ${events}; asks again with Last-Event-ID ${again}`;
}

(async () => {
  for (const [name, follow] of Object.entries(clients)) console.log(`${name}: ${await told(follow)}`);
  process.exit();
})();
JS
timeout 60 node try.cjs | tee seen
diff - seen <<'SEEN'
eventsource: events 1; asks again with Last-Event-ID 1
fetch-event-source: events 1; asks again with Last-Event-ID 2
SEEN
