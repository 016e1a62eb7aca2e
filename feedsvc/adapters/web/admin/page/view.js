// A status as it is shown: verdict, figures, gauge and tables. Pure rendering; it decides nothing about the connection.

import { $, create, keyed, rows, show, text, tone } from "./dom.js";
import { count, duration, hours, milliseconds, percent, plural, scopeName, time, UNKNOWN } from "./format.js";
import { CLOSES, closeness, EVENTS, RESYNCS } from "./texts.js";

const SLOW_MS = 5_000;
const YOUNG_S = 3_600;
const SVG = "http://www.w3.org/2000/svg";
const sum = (counts) => Object.values(counts).reduce((a, b) => a + b, 0);
const slowest = (status) => Math.max(0, ...status.tails.map((tail) => tail.lagMs));

/** `codes`: close code to name and meaning. */
export function render(status, atMs, history, codes) {
  const verdict = judge(status);
  verdictOf(verdict);
  figures(status, history);
  oplog(status);
  tails(status);
  counters("resyncs", status.resyncs, history.lastMinute((s) => s.resyncs), (name) => [name, RESYNCS[name] ?? ""]);
  const meaning = (code) => codes[code] ?? CLOSES[code] ?? ["", ""];
  counters("closes", status.closes, history.lastMinute((s) => s.closes), (code) => [
    code === "other" ? code : `${code} ${meaning(code)[0]}`,
    meaning(code)[1],
  ]);
  counters("tail-errors", status.tailErrors, history.lastMinute((s) => s.tailErrors), (kind) => [kind, ""]);
  tenants(status);
  errors(status, atMs);
  return verdict;
}

/** The state in one word, its tone, one sentence, and what is the matter. */
export function judge(status) {
  const why = [];
  const stalled = status.tails.filter((tail) => tail.stalled);
  const failing = status.tails.filter((tail) => !tail.stalled && tail.error);
  const slow = status.tails.filter((tail) => !tail.stalled && !tail.error && tail.lagMs > SLOW_MS);
  const names = (list) => list.slice(0, 3).map((tail) => scopeName(tail.scope)).join(", ") + (list.length > 3 ? ", …" : "");
  if (status.sourceError) why.push(`MongoDB did not answer the last question: ${status.sourceError}.`);
  if (stalled.length)
    why.push(`${plural(stalled.length, "tail")} of ${status.tails.length} stalled: ${names(stalled)}. Their clients are told.`);
  if (failing.length) why.push(`${plural(failing.length, "tail")} opened anew after a failure: ${names(failing)}.`);
  if (slow.length) why.push(`${plural(slow.length, "tail")} more than ${SLOW_MS / 1000} s behind MongoDB: ${names(slow)}.`);
  const { usedRatio: ratio = null, windowSeconds: reach } = status.oldestPosition ?? {};
  if (ratio !== null && ratio >= 0.5) {
    const young = reach < YOUNG_S ? `, which reaches back ${hours(reach)} only: it is young or too small` : "";
    why.push(`The oldest client has used ${percent(ratio)} of the oplog window${young}. At 100 % it gets a resync.`);
  }
  if (status.tails.length >= status.maxTails) why.push(`All ${status.maxTails} tails are in use (FEEDSVC_MAX_TAILS).`);
  if (status.state === "draining")
    return { word: "Draining", tone: "warn", title: `Shutting down: ${plural(status.connections, "connection")} left`, why };
  if (status.state === "starting")
    return { word: "Starting", tone: "warn", title: "Starting: MongoDB has not answered yet", why };
  if (status.sourceError || stalled.length) return { word: "Degraded", tone: "bad", title: "Degraded: not all changes arrive", why };
  if (why.length) return { word: "Serving", tone: "warn", title: "Serving, with something to look at", why };
  const title = status.tails.length
    ? `${status.tails.length === 1 ? "The tail reads" : `All ${status.tails.length} tails read`} within ${milliseconds(slowest(status))} of MongoDB`
    : "Serving; nobody is subscribed, so no tail is open";
  return { word: "Serving", tone: "good", title, why };
}

function verdictOf(verdict) {
  tone($("verdict"), verdict.tone);
  text($("verdict-title"), verdict.title);
  keyed($("verdict-why"), verdict.why, (line) => line, () => create("li"), text);
  show($("verdict-why"), verdict.why.length > 0);
}

function figures(status, history) {
  const catchUps = status.tails.reduce((n, tail) => n + tail.catchUps, 0);
  const lag = slowest(status);
  const items = [
    ["connections", "Connections", count(status.connections), plural(status.waitingSockets, "socket") + " without credentials", (s) => s.connections],
    ["subscriptions", "Subscriptions", count(status.subscriptions), "of all connections", (s) => s.subscriptions],
    ["topics", "Topics", count(status.topics), "distinct, of all tenants", (s) => s.topics],
    ["lag", "Slowest tail", status.tails.length ? milliseconds(lag) : "–", status.tails.length ? "behind MongoDB" : "none is open", slowest, lag > SLOW_MS ? "warn" : ""],
    ["tails", "Tails", count(status.tails.length), `of ${count(status.maxTails)} at the most`, (s) => s.tails.length],
    ["catch-ups", "Catch-up tails", count(catchUps), `${count(status.catchUpsOpened)} opened since the start`, (s) => s.tails.reduce((n, tail) => n + tail.catchUps, 0)],
    ["snapshots", "Snapshots", count(status.snapshotsRunning), `${count(status.snapshotsWaiting)} waiting`, (s) => s.snapshotsRunning],
    ["resyncs", "Resyncs", count(sum(status.resyncs)), "since the start", (s) => sum(s.resyncs)],
  ];
  keyed($("figures"), items, ([name]) => name, figure, (element, [name, label, value, hint, pick, colour = ""]) => {
    const [term, number, note] = element.children;
    text(term, label);
    text(number, value);
    text(note.firstChild, hint);
    tone(element, colour);
    const [area, line] = note.lastChild.children;
    const points = history.curve(pick, 100, 20);
    line.setAttribute("points", points);
    area.setAttribute("points", `${points} 100,20 ${points.split(",", 1)[0]},20`);
  });
}

function figure([name]) {
  const element = create("div");
  element.id = `figure-${name}`;
  const note = create("dd", "hint");
  const curve = document.createElementNS(SVG, "svg");
  curve.setAttribute("viewBox", "0 0 100 20");
  curve.setAttribute("preserveAspectRatio", "none");
  curve.setAttribute("aria-hidden", "true");
  curve.append(document.createElementNS(SVG, "polygon"), document.createElementNS(SVG, "polyline"));
  note.append(create("span"), curve);
  element.append(create("dt"), create("dd", "number"), note);
  return element;
}

function oplog(status) {
  const oldest = status.oldestPosition;
  const ratio = oldest?.usedRatio ?? null;
  const [word, colour] = ratio === null ? ["", ""] : closeness(ratio);
  const none = oldest === null ? "no client" : UNKNOWN;
  text($("oplog-used"), ratio === null ? none : `${percent(ratio)} used`);
  text($("oplog-word"), word);
  tone($("oplog-word"), colour);
  const meter = $("meter");
  tone(meter, colour);
  const shown = ratio === null ? 0 : Math.min(1, ratio);
  $("meter-fill").setAttribute("width", String(ratio === null ? 0 : Math.max(4, Math.round(shown * 1000))));
  meter.setAttribute("aria-valuenow", String(Math.round(shown * 100)));
  meter.setAttribute("aria-valuetext", ratio === null ? none : `${percent(ratio)} of the window used, ${word}`);
  text($("oplog-age"), oldest === null ? "no client holds one" : `${hours(oldest.ageSeconds)} behind`);
  text($("oplog-window"), hours(status.oplog.windowSeconds));
  text($("oplog-images"), hours(status.oplog.windowSecondsWithImages));
  const unreadable = status.oplog.windowSeconds === null;
  text($("oplog-note"), unreadable
    ? "The service may not read the oplog, so it cannot tell how long a client may be away. Grant it read on local."
    : "Of connected clients. At 100 % a reconnect finds its place gone and ends in a resync; a client that is away longer than the window loses its place too.");
}

function tails(status) {
  const rank = (tail) => (tail.stalled ? 0 : tail.error ? 1 : tail.opened ? 2 : 1);
  const sorted = status.tails.toSorted((a, b) => rank(a) - rank(b) || scopeName(a.scope).localeCompare(scopeName(b.scope)));
  text($("tails-count"), sorted.length ? `${count(sorted.length)} of ${count(status.maxTails)}` : "");
  rows($("tails"), sorted, (tail) => scopeName(tail.scope), (tail) => [
    scopeName(tail.scope),
    tailState(tail),
    { text: milliseconds(tail.lagMs), tone: tail.lagMs > SLOW_MS ? "warn" : "" },
    count(tail.subscriptions),
    count(tail.catchUps),
    count(tail.waiting),
  ]);
}

function tailState(tail) {
  if (tail.stalled) return { text: "stalled", hint: tail.error ?? "no answer", tone: "bad" };
  if (tail.error) return { text: "retrying", hint: tail.error, tone: "warn" };
  if (!tail.opened) return { text: "opening", tone: "warn" };
  if (tail.idleSeconds !== null) return { text: "idle", hint: `for ${duration(tail.idleSeconds)}`, tone: "quiet" };
  return { text: "live", tone: "good" };
}

function counters(id, counts, grown, describe) {
  const found = Object.entries(counts).filter(([, n]) => n > 0).sort(([a, n], [b, m]) => m - n || a.localeCompare(b));
  text($(`${id}-count`), found.length ? count(sum(counts)) : "");
  rows($(id), found, ([name]) => name, ([name, n]) => {
    const [label, hint] = describe(name);
    const lately = grown(name);
    return [{ text: label, hint }, { text: lately ? `+${count(lately)}` : "–", tone: lately ? "warn" : "quiet" }, count(n)];
  });
}

function tenants(status) {
  const shown = status.tenants.length;
  text($("tenants-count"), shown < status.tenantCount ? `the first ${shown} of ${count(status.tenantCount)}` : shown ? count(shown) : "");
  rows($("tenants"), status.tenants, (item) => item.tenant, (item) => [
    item.tenant, count(item.connections), count(item.subscriptions), count(item.topics),
  ]);
}

function what({ kind, event, text: said }) {
  const words = said || (EVENTS[event] ?? "");
  return kind ? { text: kind, hint: words } : words || "–";
}

function errors(status, atMs) {
  text($("errors-count"), status.recentErrors.length ? `the last ${status.recentErrors.length}` : "");
  const numbered = status.recentErrors.map((error, index) => ({ ...error, index }));
  rows($("errors"), numbered, (error) => String(error.index), (error) => [
    { text: time(error.atMs, atMs), hint: `${duration((atMs - error.atMs) / 1000)} ago` },
    error.event,
    error.scope === null ? "–" : scopeName(error.scope),
    what(error),
  ]);
}
