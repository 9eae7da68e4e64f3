// What a token says: nothing here checks it, which only the hub can.

// Return what a token grants, as lines of text, and when it expires, in seconds since the
// epoch.  Returns null if the text is no token.
export function read(token) {
  let claims;
  try {
    claims = part(token.split(".")[1]);
  } catch {
    return null;
  }
  const { publish, subscribe } = claims.authorization_details ? current(claims) : classic(claims);
  const lines = [
    `may publish ${topics(publish)}`,
    `may read private updates ${topics(subscribe)}`,
    ...(claims.sub ? [`is for the subject ${claims.sub}`] : []),
  ];
  return { lines, expires: typeof claims.exp === "number" ? claims.exp : null };
}

function part(text) {
  const bytes = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (byte) => byte.charCodeAt(0));
  const claims = JSON.parse(new TextDecoder().decode(bytes));
  if (typeof claims !== "object" || claims === null) throw new TypeError("no claims");
  return claims;
}

function current({ authorization_details: details }) {
  const granted = { publish: [], subscribe: [] };
  for (const { actions, topics } of Array.isArray(details) ? details : []) {
    for (const action of ["publish", "subscribe"]) {
      if (actions?.includes?.(action)) granted[action].push(...(topics ?? []).map(pattern));
    }
  }
  return granted;
}

function classic(claims) {
  const claim = claims["https://mercure.rocks/"] ?? claims.mercure ?? {};
  const listed = (entries) => (Array.isArray(entries) ? entries : []).map(pattern);
  return { publish: listed(claim.publish), subscribe: listed(claim.subscribe) };
}

function pattern(entry) {
  const { match, match_type: type } = typeof entry === "string" ? { match: entry } : (entry ?? {});
  return type && type !== "exact" ? `${match} (${type})` : String(match);
}

function topics(patterns) {
  if (!patterns.length) return "on no topic";
  return patterns.includes("*") ? "on all topics" : `on ${patterns.join(", ")}`;
}

// Return when a token expires, in words.
export function expiry(expires, now = Date.now() / 1_000) {
  if (expires === null) return "does not expire";
  const at = new Date(expires * 1_000).toLocaleString();
  return expires <= now ? `has expired at ${at}` : `expires in ${span((expires - now) * 1_000)}, at ${at}`;
}

// Return a number of milliseconds in words.
export function span(milliseconds) {
  if (milliseconds < 1_000) return `${Math.round(milliseconds)} ms`;
  const units = [["s", 1_000], ["min", 60_000], ["h", 3_600_000], ["days", 86_400_000]];
  const [unit, size] = units.findLast(([, size], index) => index === 0 || milliseconds >= 2 * size);
  return `${Math.round(milliseconds / size)} ${unit}`;
}
