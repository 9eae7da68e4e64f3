// A proxy that compresses what it passes on, as those of Express, webpack-dev-server and
// Next.js do: node compressing_proxy.js PORT.  It prints its own port.

const http = require("node:http");
const compress = require("compression")();

const server = http.createServer((request, response) =>
  compress(request, response, () => {
    const { method, url, headers } = request;
    const onward = http.request({ port: process.argv[2], method, path: url, headers }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    });
    response.on("close", () => onward.destroy());
    onward.on("error", () => response.destroy());
    request.pipe(onward);
  }),
);
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
