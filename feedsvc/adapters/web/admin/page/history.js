// The last minutes of what was seen, for what grew lately and for the small curves. Gone with the page.

const KEPT_MS = 180_000;
const MINUTE_MS = 60_000;
const LEAST_SPAN_MS = 10_000;

export class History {
  #samples = [];

  add(atMs, status) {
    const last = this.#samples.at(-1);
    // Another process, or the same one started anew: its counters have nothing to do with those before.
    if (last && status.startedAtMs !== last.status.startedAtMs) this.#samples = [];
    this.#samples.push({ atMs, status });
    while (this.#samples[0].atMs < atMs - KEPT_MS) this.#samples.shift();
  }

  clear() {
    this.#samples = [];
  }

  /** Growth of the counters in `pick(status)` within the last minute, or since the page looks. */
  lastMinute(pick) {
    const now = this.#samples.at(-1);
    const then = this.#samples.find((sample) => sample.atMs >= now.atMs - MINUTE_MS);
    const before = pick(then.status);
    return (name) => (pick(now.status)[name] ?? 0) - (before[name] ?? 0);
  }

  /** Points of an SVG polyline in a box of `width` by `height`, over all that is kept; zero is its lower edge. */
  curve(pick, width, height) {
    const values = this.#samples.map((sample) => [sample.atMs, pick(sample.status)]);
    const newest = values.at(-1)[0];
    const spanMs = Math.max(LEAST_SPAN_MS, newest - values[0][0]);
    const most = Math.max(1, ...values.map(([, value]) => value));
    return values
      .map(([atMs, value]) => {
        const x = width * (1 - (newest - atMs) / spanMs);
        const y = height - 1 - (height - 2) * (value / most);
        return `${x.toFixed(1)},${y.toFixed(1)}`;
      })
      .join(" ");
  }
}
