// The event stream of /v1/status, read with fetch: EventSource cannot send a header, and a JWT does not belong in a URL.
//
// The service says something each second, so silence is an answer too: after SILENCE_MS the connection counts as lost.
// It comes back with backoff and full jitter, and not at all where the JWT was refused. The caller is told every change:
//   connecting   {since}                   a request is under way; `since`: when the last one was lost, null at first
//   live         {}                        the first status of a connection has come
//   waiting      {since, retryAt, reason}  lost; the next attempt is at `retryAt` (epoch milliseconds)
//   refused      {code, reason}            this JWT does not do, or no longer; nothing more happens

const SILENCE_MS = 6_000;
const FIRST_WAIT_MS = 1_000;
const MOST_WAIT_MS = 15_000;
const LEAST_WAIT_MS = 300;

class Lost extends Error {
  constructor(message, retryAfterMs = null) {
    super(message);
    this.retryAfterMs = retryAfterMs;
  }
}

class Refused extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

export class StatusStream {
  #url; #jwt; #onStatus; #onChange;
  #stopped = false;
  #abort = null;
  #wake = null;
  #lostSince = null;
  #failures = 0;
  #live = false;

  constructor(url, jwt, onStatus, onChange) {
    this.#url = url;
    this.#jwt = jwt;
    this.#onStatus = onStatus;
    this.#onChange = onChange;
    this.#run();
  }

  stop() {
    this.#stopped = true;
    this.#jwt = "";
    this.#abort?.abort();
    this.#wake?.();
  }

  retryNow() {
    this.#wake?.();
  }

  async #run() {
    while (!this.#stopped) {
      this.#tell("connecting", { since: this.#lostSince });
      try {
        await this.#once();
      } catch (error) {
        if (this.#stopped) return;
        if (error instanceof Refused) {
          this.#tell("refused", { code: error.code, reason: error.message });
          return;
        }
        await this.#wait(error);
      }
    }
  }

  #tell(state, details = {}) {
    if (!this.#stopped) this.#onChange({ state, ...details });
  }

  async #wait(error) {
    this.#lostSince ??= Date.now();
    const most = Math.min(MOST_WAIT_MS, FIRST_WAIT_MS * 2 ** this.#failures++);
    const waitMs = Math.max(LEAST_WAIT_MS, error.retryAfterMs ?? 0) + Math.random() * most;
    this.#tell("waiting", { since: this.#lostSince, retryAt: Date.now() + waitMs, reason: error.message });
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, waitMs);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    this.#wake = null;
  }

  /** One request until it ends, which it does by throwing Lost or Refused. */
  async #once() {
    const abort = (this.#abort = new AbortController());
    this.#live = false;
    let silent = false;
    let timer = 0;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => {
        silent = true;
        abort.abort();
      }, SILENCE_MS);
    };
    try {
      heard();
      const response = await fetch(this.#url, {
        headers: { Accept: "text/event-stream", Authorization: `Bearer ${this.#jwt}` },
        cache: "no-store",
        redirect: "error",
        signal: abort.signal,
      });
      if (!response.ok) throw await refusal(response);
      const kind = response.headers.get("content-type") ?? "";
      if (!kind.startsWith("text/event-stream")) throw new Lost("what answers at /v1/status is not this service");
      for await (const event of events(response.body, heard)) this.#take(event);
      throw new Lost("the connection was cut");
    } catch (error) {
      if (error instanceof Lost || error instanceof Refused) throw error;
      if (silent) throw new Lost(`nothing came for ${SILENCE_MS / 1000} s`);
      throw new Lost("the service cannot be reached");
    } finally {
      clearTimeout(timer);
      abort.abort();
    }
  }

  #take({ name, data }) {
    if (name === "status") {
      this.#failures = 0;
      this.#lostSince = null;
      if (!this.#live) this.#tell("live");
      this.#live = true;
      this.#onStatus(JSON.parse(data));
    } else if (name === "close") {
      const { code, action, reason } = JSON.parse(data);
      if (action === "authenticate" || action === "stop") throw new Refused(reason, "The JWT has expired.");
      throw new Lost(`the service closed the stream: ${code} ${reason}`);
    }
  }
}

async function refusal(response) {
  let problem = {};
  try {
    problem = await response.json();
  } catch {
    // a proxy answers with something of its own
  }
  const reason = problem.detail ?? `HTTP ${response.status}`;
  if (response.status === 401 || response.status === 403) return new Refused(problem.code ?? "refused", reason);
  const seconds = Number(response.headers.get("retry-after"));
  return new Lost(`the service answers ${response.status}: ${reason}`, seconds > 0 ? seconds * 1000 : null);
}

/** Server-sent events of a body (WHATWG HTML, section 9.2.6); the service ends lines with LF. */
async function* events(body, heard) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    heard();
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const event = { name: "message", data: "" };
      for (const line of block.split("\n")) {
        const colon = line.indexOf(":");
        const content = line.slice(colon + 1).replace(/^ /, "");
        if (line.startsWith("event:")) event.name = content;
        if (line.startsWith("data:")) event.data += content;
      }
      if (event.data) yield event;
    }
  }
}
