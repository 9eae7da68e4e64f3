/*! MercureSource 1.0.0, a part of skipfilter; MIT licence */
export type Gap = {
    /**
     * The cursor that the hub was asked for.
     */
    asked: string;
    /**
     * Whether the hub still has some of the updates since.
     */
    lost: "some" | "all";
    /**
     * `too_old`, `unknown` or `new_epoch`, for a log.
     */
    reason?: string;
};
export type Options = {
    /**
     * Send cookies also to a hub of another origin.
     */
    withCredentials?: boolean;
    /**
     * A token for
     * the header `Authorization`, or a function that gets a new one.  It is called before
     * the old one expires and after a 401, may renew a cookie instead, and return nothing.
     */
    token?: string | (() => string | void | Promise<string | void>);
    /**
     * The cursor to begin at, if the storage has none.
     */
    lastEventId?: string;
    /**
     * Where the cursor outlives a
     * reload, as in `sessionStorage`.
     */
    storage?: Pick<Storage, "getItem" | "setItem">;
    /**
     * Closes the source.
     */
    signal?: AbortSignal;
    /**
     * Is called if updates may have been lost.
     */
    onGap?: (gap: Gap) => void;
    /**
     * Is called when the page has all that the hub has stored,
     * and again after each reconnection: later updates are new.  Only for a hub with signals.
     */
    onLive?: () => void;
    /**
     * Only tabs with the same key share a connection.
     */
    key?: string;
};
export type Update = MessageEvent<string> & {
    waitUntil(promise: Promise<unknown>): void;
};
export type Failure = Event & {
    message: string;
    status?: number;
};
export type Listener = ((event: any) => void) | {
    handleEvent(event: any): void;
} | null;
export type Target = Omit<EventTarget, "addEventListener" | "removeEventListener"> & {
    addEventListener(type: string, listener: Listener, options?: boolean | AddEventListenerOptions): void;
    removeEventListener(type: string, listener: Listener, options?: boolean | EventListenerOptions): void;
};
export type Matchers = Iterable<[string, string]> | Record<string, string | string[]>;
declare const MercureSource_base: new () => Target;
/**
 * An `EventSource` for a Mercure hub that does not give up.
 *
 * The events `open`, `message`, `error` and those with a type are the same.  An `error`
 * has a `message`, and perhaps a `status`; after it, `readyState` is `CLOSED` if no later
 * attempt would help.  `identitychange` tells that the browser has become another user's:
 * the source is closed, and has handed on nothing of the other.
 */
export declare class MercureSource extends /** @type {new () => Target} */ /** @type {new () => Target} */ MercureSource_base {
    #private;
    /** @readonly */
    static readonly CONNECTING = 0;
    /** @readonly */
    static readonly OPEN = 1;
    /** @readonly */
    static readonly CLOSED = 2;
    /** @readonly */
    readonly CONNECTING = 0;
    /** @readonly */
    readonly OPEN = 1;
    /** @readonly */
    readonly CLOSED = 2;
    /** @type {((event: Event) => void) | null} */
    onopen: ((event: Event) => void) | null;
    /** @type {((event: Update) => void) | null} */
    onmessage: ((event: Update) => void) | null;
    /** @type {((event: Failure) => void) | null} */
    onerror: ((event: Failure) => void) | null;
    /**
     * @param {string | URL} url The hub, with the parameters of the subscription.
     * @param {Options} [options]
     */
    constructor(url: string | URL, options?: Options);
    get url(): string;
    get withCredentials(): boolean;
    get readyState(): number;
    /** The cursor: the page has all up to this event. */
    get lastEventId(): string;
    close(): void;
    /**
     * Subscribe to other topics from here on.  Of those that stay, no update is lost, or
     * comes twice.
     *
     * @param {Matchers} matchers All parameters of the new subscription.
     */
    change(matchers: Matchers): void;
    /**
     * Load the state of the page, then follow from its position on.  Both happen again
     * after a gap, and if loading fails.
     *
     * @param {() => Promise<string | Response>} load Shows the state, and returns its
     *   position, or a response whose header `Link` has it.
     */
    follow(load: () => Promise<string | Response>): void;
}
export {};
