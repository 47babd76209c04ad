// Requests to the server: the key, errors with what can be done about them, and streams of events.

const KEY = "pelton-key";

/** An error that the page can show: `kind` is `away`, `key`, `busy` or `refused`. */
export class Failure extends Error {
  constructor(kind, message, { status = 0, code = null, param = null, retryAfter = 0 } = {}) {
    super(message);
    Object.assign(this, { kind, status, code, param, retryAfter });
  }
}

let keyInMemory = null;

/** The key of this tab. It is in no address and outlives the tab nowhere. */
export function key() {
  try {
    return sessionStorage.getItem(KEY) ?? keyInMemory;
  } catch {
    return keyInMemory;
  }
}

export function setKey(value) {
  keyInMemory = value || null;
  try {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  } catch {
    // Kept in memory alone, until the page is loaded again.
  }
  keyListeners.forEach((listener) => listener());
}

const keyListeners = [];
export const onKey = (listener) => keyListeners.push(listener);

/** Sends a request. `body` is sent as JSON. Answers with the response, or throws a `Failure`. */
export async function call(path, { body, signal } = {}) {
  const headers = {};
  if (key()) headers.authorization = `Bearer ${key()}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    // Addresses are relative to the page, so that a proxy may serve it below a path.
    response = await fetch(new URL(path, document.baseURI), {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
      credentials: "same-origin",
      redirect: "error",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("away", "The server does not answer. It may have ended, or the network is down.");
  }
  if (response.ok) return response;
  throw await failure(response);
}

async function failure(response) {
  const { status } = response;
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // Proxies answer with pages of their own.
  }
  return failureOf(error, status, response.headers.get("retry-after"));
}

/** A failure from the error object of an answer or of a stream. */
export function failureOf(error, status = 0, retryAfter = null) {
  const message = typeof error.message === "string" ? error.message : `The server answered with status ${status}.`;
  const kind = status === 401 ? "key" : status === 429 || status === 503 ? "busy" : "refused";
  const details = { status, code: error.code ?? null, param: error.param ?? null };
  return new Failure(kind, message, { ...details, retryAfter: seconds(retryAfter) });
}

/** `Retry-After` in seconds; a date is read too. */
function seconds(header) {
  if (!header) return 0;
  const plain = Number(header);
  if (Number.isFinite(plain)) return Math.max(0, plain);
  const until = Date.parse(header);
  return Number.isFinite(until) ? Math.max(0, Math.ceil((until - Date.now()) / 1000)) : 0;
}

/** The JSON of a route. */
export async function json(path, options) {
  return (await call(path, options)).json();
}

/** The `data:` lines of a stream of events, up to `[DONE]`. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) throw new Failure("away", "The answer was cut off: the connection has ended.");
      const lines = (rest + value).split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        yield JSON.parse(data);
      }
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Failure) throw error;
    throw new Failure("away", "The answer was cut off: the connection has ended.");
  } finally {
    reader.cancel().catch(() => {});
  }
}
