/*! MercureSource 1.0.0, a part of skipfilter; MIT licence */

// EventSource for a Mercure hub: it comes back, renews its token and tells of gaps, and
// all tabs of one user share one connection.
//
//     hub ── stream ──► leader ── BroadcastChannel ──► followers
//
// The tab that holds a Web Lock leads: it reads the stream, and numbers the events that
// it hands on.  When it closes, freezes, hangs or falls behind, the next tab with the
// lock continues after the last event that it has.  All count alike, so each tab drops
// what it has already.  If a number is missing, or a gap has begun a new line of
// numbers, a tab begins again at its own cursor: it reads what it has missed, and joins
// the others.
//
// Tabs of two users never share: the name of the lock and of the channel contains the
// identity that the hub names in the first event of each stream.

const HEARTBEATS = 2.25; // of silence, after which a connection is given up
const LATE = 2_000; // milliseconds that a heartbeat may be late
const PATIENCE = 60_000; // milliseconds without a byte, before the hub has told its interval
const ANSWER = 2_000; // milliseconds in which a leader answers, unless it hangs
const WAKING = 1_000; // milliseconds in which bytes arrive that have waited for a sleeping page
const TICK = 1_000; // milliseconds between two looks at the clock
const PAUSE = 1_000; // milliseconds before the second attempt, unless the server says otherwise
const SHORTEST_PAUSE = 100;
const LONGEST_PAUSE = 60_000;
const TOKEN_LIFE = 0.8; // the part of a token's life after which another is asked for
const LONGEST_TIMER = 2 ** 31 - 1; // of setTimeout
const REFUSALS = 3; // new tokens in a row that are answered with 401
const MOST = 1_000; // events that wait for a slow page
const MAY_PASS = [408, 421, 425, 429]; // and all from 500 on
const ANOTHER = "the stream would be that of another user";
const PLAIN = /^[!-~]([ -~]*[!-~])?$/; // what a header carries unchanged

const SIGNALS = ["identity", "gap", "position", "heartbeat", "goodbye"];

const newLine = () => String(Math.random());

const CONNECTING = 0;
const OPEN = 1;
const CLOSED = 2;

/**
 * @typedef {object} Gap What was lost before the next event.
 * @property {string} asked The cursor that the hub was asked for.
 * @property {"some" | "all"} lost Whether the hub still has some of the updates since.
 * @property {string} [reason] `too_old`, `unknown` or `new_epoch`, for a log.
 */

/**
 * @typedef {object} Options
 * @property {boolean} [withCredentials] Send cookies also to a hub of another origin.
 * @property {string | (() => string | void | Promise<string | void>)} [token] A token for
 *   the header `Authorization`, or a function that gets a new one.  It is called before
 *   the old one expires and after a 401, may renew a cookie instead, and return nothing.
 * @property {string} [lastEventId] The cursor to begin at, if the storage has none.
 * @property {Pick<Storage, "getItem" | "setItem">} [storage] Where the cursor outlives a
 *   reload, as in `sessionStorage`.
 * @property {AbortSignal} [signal] Closes the source.
 * @property {(gap: Gap) => void} [onGap] Is called if updates may have been lost.
 * @property {() => void} [onLive] Is called when the page has all that the hub has stored,
 *   and again after each reconnection: later updates are new.  Only for a hub with signals.
 * @property {string} [key] Only tabs with the same key share a connection.
 */

/**
 * @typedef {MessageEvent<string> & { waitUntil(promise: Promise<unknown>): void }} Update
 *   The next event waits for the promise, and in the end a slow page's hub does.
 */

/**
 * @typedef {Event & { message: string, status?: number }} Failure
 *   What was wrong, and the status of the answer if there was one.
 */

/**
 * @typedef {((event: any) => void) | { handleEvent(event: any): void } | null} Listener
 * @typedef {Omit<EventTarget, "addEventListener" | "removeEventListener"> & {
 *   addEventListener(type: string, listener: Listener, options?: boolean | AddEventListenerOptions): void,
 *   removeEventListener(type: string, listener: Listener, options?: boolean | EventListenerOptions): void,
 * }} Target
 */

/**
 * @typedef {Iterable<[string, string]> | Record<string, string | string[]>} Matchers
 *   The parameters of a subscription, as in `{ topic: ["/books/1", "/books/2"] }`.
 */

// Why an attempt has failed or, if it is final, all later ones would.
class Ending extends Error {
  constructor(message, { status, pause, final = false, isOfAnother = false, isOfToken = false } = {}) {
    super(message);
    this.status = status;
    this.pause = pause; // milliseconds, if the server says so
    this.final = final;
    this.isOfAnother = isOfAnother; // whether the stream is that of another user
    this.isOfToken = isOfToken; // whether the page has got no token
  }
}

const RENEWAL = new Ending("the token is renewed");

// Measures milliseconds with two clocks, because one may stop while the computer sleeps.
class Watch {
  restart() {
    this.start = [Date.now(), performance.now()];
    return this;
  }

  get elapsed() {
    return Math.max(Date.now() - this.start[0], performance.now() - this.start[1]);
  }
}

// Settles as the promise does, or fails if the signal aborts before.
const unless = (signal, promise) =>
  new Promise((resolve, reject) => {
    promise.then(resolve, reject);
    signal.addEventListener("abort", reject);
  });

// Read a stream as the HTML standard says.  Yields what stands before each blank line;
// without data, it is no event.  `EventSource.fromReadableStream` may replace this.
async function* read(body, id, heard, setPause) {
  const reader = body.getReader();
  const decoder = new TextDecoder(); // which drops a byte order mark
  let rest = "";
  let isAfterCR = false;
  let type = "";
  let data;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    heard();
    const text = decoder.decode(value, { stream: true });
    if (!text) continue; // half a character
    const lines = (isAfterCR && text[0] === "\n" ? text.slice(1) : text).split(/\r\n?|\n/);
    isAfterCR = text.endsWith("\r");
    lines[0] = rest + lines[0];
    rest = lines.pop();
    for (const line of lines) {
      const colon = `${line}:`.indexOf(":");
      const name = line.slice(0, colon);
      const field = line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
      if (!line) {
        yield { id, type: type || "message", data: data?.join("\n") };
        type = "";
        data = undefined;
      } else if (name === "data") (data ??= []).push(field);
      else if (name === "event") type = field;
      else if (name === "id" && !field.includes("\0")) id = field;
      else if (name === "retry" && /^\d+$/.test(field)) setPause(Number(field));
    }
  }
}

// The members of a signal of the hub; nothing for any other event.
function signalIn({ type, data }) {
  if (type !== "mercure") return;
  try {
    const members = JSON.parse(data);
    if (SIGNALS.includes(members.type)) return members;
  } catch {} // it is of another hub
}

// What an event of a stream means for the page: a cursor, and perhaps a gap or an update.
function newsIn({ id, type, data, signal }) {
  const { asked, lost, reason } = signal ?? {};
  return {
    cursor: id,
    gap: signal?.type === "gap" && lost !== "nothing" ? { asked, lost, reason } : undefined,
    update: !signal && data !== undefined ? { type, data } : undefined,
  };
}

// When a token expires, in milliseconds since 1970.
function expiry(token) {
  try {
    return JSON.parse(atob(token.split(".")[1].replaceAll("-", "+").replaceAll("_", "/"))).exp * 1_000 || Infinity;
  } catch {
    return Infinity;
  }
}

// What may be wrong with a response that is no stream.
async function refusal(response) {
  const { status, statusText, headers } = response;
  if (response.type === "opaqueredirect") return new Ending("a redirect, which the token does not follow", { final: true });
  if (status === 200) return new Ending(`${headers.get("Content-Type")} is no event stream`, { status, final: true });
  if (status === 204) return new Ending("204: the server wants no reconnection", { status, final: true });
  const problem = await response.json().catch(() => {});
  const after = headers.get("Retry-After");
  const pause = after ? (/^\d+$/.test(after) ? after * 1_000 : Date.parse(after) - Date.now()) : NaN;
  return new Ending(`${status}: ${problem?.detail ?? statusText}`, {
    status,
    pause: pause >= 0 ? pause : undefined,
    final: status < 500 && !MAY_PASS.includes(status),
  });
}

/**
 * An `EventSource` for a Mercure hub that does not give up.
 *
 * The events `open`, `message`, `error` and those with a type are the same.  An `error`
 * has a `message`, and perhaps a `status`; after it, `readyState` is `CLOSED` if no later
 * attempt would help.  `identitychange` tells that the browser has become another user's:
 * the source is closed, and has handed on nothing of the other.
 */
export class MercureSource extends /** @type {new () => Target} */ (EventTarget) {
  /** @readonly */
  static CONNECTING = CONNECTING;
  /** @readonly */
  static OPEN = OPEN;
  /** @readonly */
  static CLOSED = CLOSED;
  /** @readonly */
  CONNECTING = CONNECTING;
  /** @readonly */
  OPEN = OPEN;
  /** @readonly */
  CLOSED = CLOSED;

  /** @type {((event: Event) => void) | null} */
  onopen = null;
  /** @type {((event: Update) => void) | null} */
  onmessage = null;
  /** @type {((event: Failure) => void) | null} */
  onerror = null;

  #url;
  #options;
  #state = CONNECTING;
  /** @type {string | undefined} */
  #cursor; // the page has all up to here
  #identity; // whose stream it is
  #place; // in the storage
  #stored; // what was in the storage: a cursor, and whose it was
  #load; // loads the state, for `follow`
  #isLoaded = false;
  #token; // the last one of the function, whether it was used before, and when the next is due
  #refusals = 0;
  #failures = 0; // attempts in a row
  #heartbeat; // the interval in milliseconds; 0 for none, undefined if the hub has not told it
  #pause = PAUSE;
  #shares = Boolean(globalThis.navigator?.locks && globalThis.BroadcastChannel);
  #group = {}; // the tabs that share the stream; this one leads, or is alone, or follows
  #requests = new Set();
  #inbox = []; // what the page has yet to take
  #isTaking = false;
  #taking = Promise.resolve(); // settles when the page has taken all
  #endPause = (_isHurried) => {};
  #life; // ends when this tab begins again
  #end = new AbortController(); // when it is closed
  #isAsleep = false;
  #ticks;

  /**
   * @param {string | URL} url The hub, with the parameters of the subscription.
   * @param {Options} [options]
   */
  constructor(url, options = {}) {
    super();
    this.#url = new URL(url, globalThis.location?.href);
    this.#options = options;
    try {
      this.#place = this.#name; // also if the URL changes
      this.#stored = JSON.parse(options.storage?.getItem(this.#place));
    } catch {} // it is not ours
    this.#cursor = this.#stored?.cursor ?? options.lastEventId;
    for (const type of ["open", "message", "error"]) this.addEventListener(type, (event) => this[`on${type}`]?.(event));
    const { signal } = this.#end;
    const listen = (target, type, hear) => target?.addEventListener?.(type, hear, { signal });
    const wake = () => this.#awake();
    const sleep = () => this.#sleep();
    listen(options.signal, "abort", () => this.close());
    listen(globalThis.document, "visibilitychange", () => document.hidden || wake());
    listen(globalThis.document, "freeze", sleep);
    listen(globalThis.document, "resume", wake);
    listen(globalThis, "pagehide", sleep);
    listen(globalThis, "pageshow", wake);
    listen(globalThis, "online", wake);
    this.#ticks = setInterval(() => this.#tick(), TICK);
    if (options.signal?.aborted) this.close();
    else this.#begin();
  }

  get url() {
    return this.#url.href;
  }

  get withCredentials() {
    return Boolean(this.#options.withCredentials);
  }

  get readyState() {
    return this.#state;
  }

  /** The cursor: the page has all up to this event. */
  get lastEventId() {
    return this.#cursor ?? "";
  }

  close() {
    this.#state = CLOSED;
    this.#inbox = [];
    this.#stop();
    clearInterval(this.#ticks);
    this.#end.abort();
  }

  /**
   * Subscribe to other topics from here on.  Of those that stay, no update is lost, or
   * comes twice.
   *
   * @param {Matchers} matchers All parameters of the new subscription.
   */
  change(matchers) {
    const pairs = Symbol.iterator in matchers ? [...matchers] : Object.entries(matchers);
    this.#url.search = new URLSearchParams(pairs.flatMap(([name, some]) => [some].flat().map((one) => [name, one])));
    this.#begin();
  }

  /**
   * Load the state of the page, then follow from its position on.  Both happen again
   * after a gap, and if loading fails.
   *
   * @param {() => Promise<string | Response>} load Shows the state, and returns its
   *   position, or a response whose header `Link` has it.
   */
  follow(load) {
    this.#load = load;
    this.#isLoaded = false;
    this.#inbox = [];
    this.#begin();
  }

  // -- one life, from the cursor on, until this tab must begin again

  #begin() {
    this.#stop();
    if (this.#state === CLOSED || this.#isAsleep) return;
    const { signal } = (this.#life = new AbortController());
    this.#live(signal).catch((error) => signal.aborted || this.#finish(error));
  }

  #stop() {
    this.#life?.abort();
    this.#endPause(true);
    this.#group = {};
  }

  async #live(signal) {
    do await this.#taking; // also if that is nothing: the page has yet to add its listeners
    while (this.#isTaking);
    if (signal.aborted) return;
    if (this.#load && !this.#isLoaded) await this.#again(signal, () => this.#loadState(signal));
    if (this.#shares && (await this.#isLed())) {
      // The other tabs may be of another user: ask the hub who this one is.
      let present = this.#identity && this.#cursor;
      const take = ({ id }) => (present = id);
      const isTold = present || (await this.#again(signal, () => this.#replay("", signal, take)));
      if (signal.aborted) return;
      if (isTold) return this.#join(signal, present);
    }
    if (signal.aborted) return;
    this.#group = { signal, isLeading: true, line: newLine(), number: 0, cursor: this.#cursor };
    return this.#lead(this.#group);
  }

  // Make attempts until one succeeds, and return its result.
  async #again(signal, attempt) {
    for (;;) {
      try {
        const result = await attempt();
        this.#failures = 0;
        return result;
      } catch (error) {
        await this.#recover(error, signal);
      }
    }
  }

  // Wait after an attempt that has failed.  Throws the error if another is of no use.
  async #recover(error, signal) {
    if (signal.aborted || error.final) throw error;
    this.#fail(error);
    const grown = Math.min(LONGEST_PAUSE, this.#pause * 2 ** this.#failures++);
    const pause = Math.max(
      error.pause === undefined ? grown * (0.5 + Math.random()) : error.pause * (1 + Math.random() / 2),
      SHORTEST_PAUSE,
    );
    const due = Date.now() + pause;
    await new Promise((resolve) => {
      setTimeout(resolve, Math.min(pause, LONGEST_TIMER));
      // Timers of hidden tabs may be late.
      this.#endPause = (isHurried) => ((isHurried && error.pause === undefined) || signal.aborted || Date.now() >= due) && resolve();
    });
    if (signal.aborted) throw error;
  }

  async #loadState(signal) {
    const found = await this.#load();
    if (signal.aborted) return;
    if (found?.ok === false) throw await refusal(found);
    const position = found?.headers
      ? /last-event-id="((?:[^"\\]|\\.)*)"/.exec(found.headers.get("Link"))?.[1].replace(/\\(.)/g, "$1")
      : found;
    if (!position) throw new Ending("what was loaded has no position", { final: true });
    this.#isLoaded = true;
    this.#cursor = position;
  }

  #open() {
    if (this.#state !== CONNECTING) return;
    this.#state = OPEN;
    this.#post({ state: OPEN });
    this.dispatchEvent(new Event("open"));
  }

  #fail({ message, status }) {
    if (this.#state === CLOSED) return;
    this.#state = CONNECTING;
    this.#group.isLive = false;
    this.#post({ state: CONNECTING, error: { message, status } });
    this.#tell(message, status);
  }

  #finish(error, isTold = false) {
    if (this.#state === CLOSED) return;
    this.close();
    if (error.isOfAnother) {
      if (this.#shares && !isTold) {
        const channel = new BroadcastChannel(this.#name + this.#identity);
        channel.postMessage({ isOfAnother: true });
        channel.close();
      }
      this.dispatchEvent(new Event("identitychange"));
    }
    this.#tell(error.message, error.status);
  }

  #tell(message, status) {
    this.dispatchEvent(Object.assign(new Event("error"), { message, status }));
  }

  // -- requests

  // Make one request, and take its events, until one of them is enough.  Returns false
  // if the server does not know what it should prefer.
  async #ask(cursor, signal, take, prefer) {
    const controller = new AbortController();
    const request = { watch: new Watch().restart(), isStream: !prefer, hasToken: false, isRead: false };
    request.stop = (error) => {
      request.error = error;
      controller.abort();
    };
    const abort = () => controller.abort();
    signal.addEventListener("abort", abort);
    this.#requests.add(request);
    let timer;
    try {
      const url = new URL(this.#url);
      const headers = { Accept: "text/event-stream" };
      url.searchParams.set("signals", "1");
      if (PLAIN.test(cursor ?? "")) headers["Last-Event-ID"] = cursor;
      else if (cursor) url.searchParams.set("last_event_id", cursor);
      if (prefer) headers.Prefer = prefer;
      const token = await unless(controller.signal, this.#bearer()).catch((error) => {
        throw new Ending(error?.message ?? error, { isOfToken: true });
      });
      request.hasToken = true;
      request.watch.restart();
      if (token) headers.Authorization = `Bearer ${token}`;
      const response = await fetch(url, {
        headers,
        cache: "no-store",
        credentials: this.withCredentials ? "include" : "same-origin",
        redirect: token ? "manual" : "follow",
        signal: controller.signal,
      });
      request.watch.restart();
      if (response.status === 401 && typeof this.#options.token === "function") {
        const isOld = this.#token?.isOld;
        this.#token = undefined;
        if (isOld || ++this.#refusals < REFUSALS) throw new Ending("401: the token is refused", { status: 401 });
      }
      if (response.status !== 200 || !/^text\/event-stream *(;|$)/i.test(response.headers.get("Content-Type"))) {
        throw await refusal(response);
      }
      request.isRead = true;
      this.#refusals = 0;
      if (prefer && !response.headers.get("Preference-Applied")?.includes(prefer)) return false;
      // A hub without signals may say nothing for long.
      if (!prefer && !this.#identity) timer = setTimeout(() => this.#open(), this.#shares ? WAKING : 0);
      const heard = () => request.watch.restart();
      let isFirst = true;
      for await (const event of read(response.body, cursor ?? "", heard, (pause) => (this.#pause = pause))) {
        if (signal.aborted) return; // and whoever asked has begun again
        event.signal = signalIn(event);
        if (isFirst && event.data !== undefined) {
          isFirst = false;
          this.#recognize(event.signal?.type === "identity" ? event.signal.identity : "");
          if (!prefer) this.#open();
        }
        if (event.signal?.type === "position") this.#heartbeat = event.signal.heartbeat ?? 0;
        if (event.signal?.type === "goodbye") {
          const { reason, retry } = event.signal;
          if (reason === "expired") this.#token = undefined;
          throw new Ending(`the hub has ended the stream: ${reason}`, { pause: retry });
        }
        if (await take(event)) return;
      }
    } catch (error) {
      throw request.error ?? error;
    } finally {
      clearTimeout(timer);
      this.#requests.delete(request);
      signal.removeEventListener("abort", abort);
      controller.abort();
    }
  }

  async #bearer() {
    const { token } = this.#options;
    if (typeof token !== "function") return token;
    if (this.#token && Date.now() < this.#token.due) this.#token.isOld = true;
    else this.#token = await this.#newToken();
    return this.#token.text;
  }

  async #newToken() {
    const now = Date.now();
    const text = await this.#options.token();
    const life = text ? expiry(text) - now : 0;
    return { text, isOld: false, due: now + (life > 0 ? TOKEN_LIFE * life : Infinity) };
  }

  // Go on with another token, before that of the stream expires.
  async #renew() {
    const old = this.#token;
    if (!this.#requests.size || !(Date.now() >= old?.due)) return;
    old.due = Infinity; // if there is no other, it is of use until the hub ends the stream
    const token = await this.#newToken().catch(() => undefined);
    if (!token || this.#token !== old) return;
    this.#token = token;
    for (const { isStream, stop } of this.#requests) if (isStream) stop(RENEWAL);
  }

  // Note whose stream it is, before any of its updates is handed on.
  #recognize(identity) {
    if (!this.#identity) {
      this.#identity = identity;
      if (this.#stored && this.#stored.identity !== identity && this.#cursor === this.#stored.cursor) {
        this.#cursor = this.#options.lastEventId;
        this.#begin();
        throw new Ending("the cursor was another user's");
      }
    } else if (!identity) {
      throw new Ending("the hub does not say whose stream it is");
    } else if (identity !== this.#identity) {
      const final = !this.#token?.isOld; // a cookie may have come to its end
      this.#token = undefined;
      throw new Ending(ANOTHER, { final, isOfAnother: true });
    }
  }

  // Read what the hub has stored after a cursor.  Returns false if it cannot do that.
  async #replay(cursor, signal, take) {
    let isWhole = false;
    const takeOne = async (event) => {
      if (this.#identity) await take?.(event);
      return (isWhole = event.signal?.type === "position");
    };
    if ((await this.#ask(cursor, signal, takeOne, "wait=0")) === false) return false;
    if (this.#identity && !isWhole) throw new Ending("the answer was cut short");
    return isWhole;
  }

  // -- the tabs that share a stream

  get #name() {
    const { href } = this.#url;
    return `mercure ${JSON.stringify([href, this.withCredentials, this.#options.key])}`;
  }

  async #isLed() {
    let held = [];
    try {
      ({ held } = await navigator.locks.query());
    } catch {
      this.#shares = false; // a sandbox, or a browser that stores nothing, may refuse them
    }
    return held.some(({ name }) => name.startsWith(this.#name));
  }

  // Lead: read the stream, and hand it on.
  async #lead(group) {
    const { signal } = group;
    for (;;) {
      let isLed = false;
      const take = async (event) => {
        this.#failures = 0;
        if (this.#shares && this.#identity && !group.channel) {
          isLed = !(await this.#hold(group, { ifAvailable: true }));
          if (isLed) this.#cursor ??= event.id;
          if (isLed || signal.aborted) return true;
          this.#connect(group);
          this.#post({ state: this.#state });
        }
        this.#handOn(group, event);
        if (event.signal?.type === "position") this.#enliven(group);
        if (this.#inbox.length <= MOST) return false;
        if (group.channel) {
          this.#begin(); // the others need not wait
          return true;
        }
        await this.#taking;
        return false;
      };
      try {
        await this.#ask(group.cursor, signal, take);
        if (isLed) return this.#join(signal, this.#cursor);
        throw new Ending("the stream has ended");
      } catch (error) {
        if (error === RENEWAL && !signal.aborted) continue;
        await this.#recover(error, signal);
        if (error.isOfToken && group.channel) return this.#begin(); // another tab may get one
      }
    }
  }

  // Take what the stream brings, with a number for the followers.
  #handOn(group, event) {
    const news = newsIn(event);
    group.cursor = news.cursor;
    if (news.gap || news.update) group.number++;
    if (news.gap) news.next = newLine();
    this.#post(news);
    if (news.gap) Object.assign(group, { line: news.next, number: 0 });
    this.#accept(group, news);
  }

  // Join the other tabs: take what the leader hands on, until this one leads.  If there
  // is no leader, a tab without a cursor begins at `present`.
  async #join(signal, present) {
    if (signal.aborted) return;
    const group = (this.#group = { signal, watch: new Watch().restart(), waiting: [] });
    const leads = new Promise((resolve) => (group.lead = resolve));
    const answered = new Promise((resolve) => (group.answer = resolve));
    this.#connect(group);
    this.#hold(group, { signal });
    this.#suspect(group);
    const answer = await Promise.race([leads, answered]);
    if (signal.aborted) return;
    if (answer) {
      const isWhole = await this.#catchUp(group);
      if (signal.aborted) return;
      if (!isWhole) {
        this.#shares = false;
        return this.#begin();
      }
      this.#learn(group, answer);
      const { waiting } = group;
      group.waiting = undefined;
      for (const message of waiting) this.#heed(group, message);
      await leads;
      if (signal.aborted) return;
    } else Object.assign(group, { line: newLine(), number: 0, cursor: this.#cursor ?? present });
    group.isLeading = true;
    this.#post({ state: this.#state });
    return this.#lead(group);
  }

  // Read what lies between this tab and the leader.  Returns false if the hub cannot
  // tell it.
  async #catchUp(group) {
    let mine = this.#cursor;
    if (!mine) this.#take({ cursor: group.cursor });
    if (!mine || mine === group.cursor) return true;
    const missed = new Set();
    const had = new Set(); // what this tab has, although the leader will hand it on
    const fresh = new Set(); // what has come meanwhile
    const read = (cursor, take) => this.#again(group.signal, () => this.#replay(cursor(), group.signal, take));
    const takeMissed = async (event) => {
      const news = newsIn(event);
      mine = news.cursor;
      if (news.update) missed.add(mine);
      this.#take(news);
      while (this.#inbox.length > MOST) await this.#taking;
    };
    const note = (some) => (event) => newsIn(event).update && some.add(event.id);
    if (!(await read(() => mine, takeMissed)) || !(await read(() => group.cursor, note(had)))) return false;
    // What it has not missed has come meanwhile, unless this tab was ahead of the leader.
    if (![...had].every((id) => missed.has(id)) && !(await read(() => mine, note(fresh)))) return false;
    for (const id of fresh) had.delete(id);
    if (had.size) group.had = had;
    return true;
  }

  #connect(group) {
    const channel = (group.channel = new BroadcastChannel(this.#name + this.#identity));
    channel.onmessage = ({ data }) => this.#hear(group, data);
    group.signal.addEventListener("abort", () => channel.close());
  }

  // Wait for the lock of a group, and hold it up to the end of this life.
  #hold(group, options) {
    const { signal } = group;
    return new Promise((resolve) => {
      const hold = (lock) => {
        resolve(Boolean(lock));
        group.lead?.();
        return lock && !signal.aborted && new Promise((release) => signal.addEventListener("abort", release));
      };
      // Another tab has taken the lock from this one if that fails.
      navigator.locks.request(this.#name + this.#identity, options, hold).catch(() => signal.aborted || this.#begin());
    });
  }

  // Ask the leader whether it is there, and take the lock from it if it is not.
  #suspect(group) {
    if (group.isSuspect) return;
    group.isSuspect = true;
    group.channel.postMessage({ isQuestion: true });
    const steal = () => {
      if (group.isSuspect && group === this.#group && !group.isLeading) this.#hold(group, { steal: true });
    };
    setTimeout(steal, ANSWER * (1 + Math.random() / 2));
  }

  #post(news) {
    const { isLeading, channel, line, number, cursor, isLive } = this.#group;
    if (isLeading) channel?.postMessage({ line, number, cursor, isLive, ...news });
  }

  #hear(group, message) {
    if (message.isOfAnother) return this.#finish(new Ending(ANOTHER, { isOfAnother: true }), true);
    if (message.isQuestion && group.isLeading) {
      this.#post({ state: this.#state });
      this.#tick(); // its timers may be late
    }
    if (message.isQuestion || group.isLeading) return;
    group.watch.restart();
    group.isSuspect = false;
    if (group.waiting?.length > MOST) this.#begin();
    else if (!group.waiting) this.#heed(group, message);
    else if (group.line) group.waiting.push(message);
    else if (message.state !== undefined) {
      const { line, number, cursor } = message;
      Object.assign(group, { line, number, cursor });
      group.answer(message);
    }
  }

  // Take what the leader hands on, if it is the next.
  #heed(group, { line, number, cursor, update, gap, next, ...told }) {
    if (group !== this.#group || this.#state === CLOSED) return;
    const isNext = Boolean(update || gap);
    if (line !== group.line || number > group.number + isNext || this.#inbox.length > MOST) return this.#begin();
    if (number < group.number + isNext) return; // this tab has it
    Object.assign(group, next ? { line: next, number: 0, cursor } : { number, cursor });
    this.#accept(group, { cursor, update, gap });
    this.#learn(group, told);
  }

  // Learn how the stream of the leader is.
  #learn(group, { state, error, isLive }) {
    if (state === OPEN) this.#open();
    else if (error) this.#fail(error);
    if (isLive) this.#enliven(group);
  }

  // Tell all tabs, once, that they have what the hub has stored.
  #enliven(group) {
    if (group.isLive) return;
    group.isLive = true;
    this.#post({});
    this.#take({ isLive: true });
  }

  // Take news, unless this tab has them from elsewhere.
  #accept(group, news) {
    // Up to the last of those, each cursor of the leader is older than that of this tab.
    if (group.had) {
      const isNew = news.update && !group.had.delete(news.cursor);
      if (isNew || !group.had.size) group.had = undefined;
      if (!isNew) {
        if (!news.gap) return;
        news = { gap: news.gap };
      }
    }
    this.#take(news);
  }

  // -- the page

  #take(news) {
    this.#inbox.push(news);
    if (!this.#isTaking) this.#taking = this.#show();
  }

  // Show the page what it has yet to take.
  async #show() {
    this.#isTaking = true;
    for (let news; (news = this.#inbox.shift()); ) {
      if (news.isLive) {
        this.#call(this.#options.onLive);
        continue;
      }
      const waits = [];
      if (news.gap) {
        this.#call(this.#options.onGap, news.gap);
        if (this.#load) this.follow(this.#load);
      }
      if (news.update) {
        const { type, data } = news.update;
        const event = new MessageEvent(type, { data, lastEventId: news.cursor, origin: this.#url.origin });
        this.dispatchEvent(Object.assign(event, { waitUntil: (promise) => waits.push(promise) }));
      }
      if (waits.length) await Promise.allSettled(waits);
      this.#cursor = news.cursor ?? this.#cursor;
      try {
        this.#options.storage?.setItem(this.#place, JSON.stringify({ cursor: this.#cursor, identity: this.#identity }));
      } catch {} // it is full
    }
    this.#isTaking = false;
  }

  // Call a function of the page, if it has one; an error in it is the page's.
  #call(listener, value) {
    try {
      listener?.(value);
    } catch (error) {
      Promise.reject(error); // so that it is reported
    }
  }

  // -- time

  #sleep() {
    this.#isAsleep = true;
    this.#stop();
    if (this.#state === OPEN) this.#state = CONNECTING;
  }

  #awake() {
    if (this.#isAsleep) {
      this.#isAsleep = false;
      return this.#begin();
    }
    this.#endPause(true);
    setTimeout(() => this.#tick(true), WAKING);
  }

  // Look at the clock: has anything been silent for too long?
  #tick(isWaking = false) {
    const beat = this.#heartbeat ?? PATIENCE / HEARTBEATS;
    const limit = beat ? Math.max(isWaking ? 0 : HEARTBEATS * beat, beat + LATE) : Infinity;
    for (const { hasToken, isRead, watch, stop } of this.#requests) {
      // A hub without signals may have no heartbeats.
      const most = isRead ? (this.#identity ? limit : Infinity) : Math.min(limit, PATIENCE);
      if (watch.elapsed <= most) continue;
      stop(new Ending(hasToken ? "the hub has fallen silent" : "no token has come", { isOfToken: !hasToken }));
    }
    this.#renew();
    const group = this.#group;
    if (group.watch && !group.isLeading && (isWaking || group.watch.elapsed > limit)) this.#suspect(group);
    this.#endPause(false);
  }
}
