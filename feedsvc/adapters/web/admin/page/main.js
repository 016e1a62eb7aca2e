// Who asks, what the connection does, and when the page is written anew.

import { $, prepare, show, text, tone } from "./dom.js";
import { duration, time } from "./format.js";
import { History } from "./history.js";
import { StatusStream } from "./stream.js";
import { render } from "./view.js";

const MOVED_MS = 60_000;

const history = new History();
let codes = {};
let stream = null;
let latest = null; // {status, atMs}: the newest that came, painted or not
let change = { state: "none" };
let pausedAt = null;
let began = null;
let broken = false;
let moved = { untilMs: 0, text: "" };

for (const table of document.querySelectorAll("table")) prepare(table);
$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const jwt = $("jwt").value.trim().replace(/^Bearer\s+/i, "");
  $("jwt").value = "";
  if (jwt) begin(jwt);
});
$("leave").addEventListener("click", () => {
  stream?.stop();
  forget();
  ask("");
  announce("The JWT is forgotten.");
});
$("pause").addEventListener("click", () => {
  pausedAt = pausedAt === null ? Date.now() : null;
  $("pause").setAttribute("aria-pressed", String(pausedAt !== null));
  if (pausedAt === null && latest) paint();
  tellLink();
});
$("retry").addEventListener("click", () => stream?.retryNow());
setInterval(tellLink, 1_000);
show($("sign-in"), true);
$("jwt").focus();
fetch("admin/codes.json", { cache: "no-store" })
  .then(async (response) => (codes = await response.json()))
  .catch(() => {}); // close codes are then shown without their names

function begin(jwt) {
  show($("refused"), false);
  forget();
  stream = new StatusStream("v1/status", jwt, take, changed);
}

function forget() {
  stream = latest = began = pausedAt = null;
  moved.untilMs = 0;
  broken = false;
  change = { state: "none" };
  history.clear();
  $("pause").setAttribute("aria-pressed", "false");
  for (const id of ["announced", "state"]) text($(id), "");
}

/** Ask for a JWT. What was shown goes with the one that was refused: who may not see it now does not. */
function ask(reason) {
  for (const id of ["status", "actions", "state", "link"]) show($(id), false);
  text($("about"), "");
  document.title = "feedsvc";
  show($("sign-in"), true);
  text($("refused"), reason);
  show($("refused"), reason !== "");
  $("jwt").setAttribute("aria-invalid", String(reason !== ""));
  $("jwt").focus();
}

function changed(next) {
  change = next;
  if (next.state === "refused") {
    forget();
    ask(refusal(next));
    return;
  }
  if (next.state === "live") {
    const first = $("status").hidden;
    show($("sign-in"), false);
    show($("status"), true);
    show($("actions"), true);
    if (first) $("verdict-title").focus();
  }
  tellLink();
}

function refusal({ code, reason }) {
  if (code === "auth_expired") return "The JWT has expired. Give a new one to go on.";
  return code === "forbidden" ? `This JWT is genuine but not enough: ${reason}.` : `The JWT is refused: ${reason}.`;
}

function take(status) {
  const atMs = Date.now();
  if (began !== null && began !== status.startedAtMs) {
    const words = `Since ${time(atMs, atMs)} another instance answers, or this one was started anew: its counts begin there.`;
    moved = { untilMs: atMs + MOVED_MS, text: words };
  }
  began = status.startedAtMs;
  latest = { status, atMs };
  history.add(atMs, status);
  if (pausedAt === null) paint();
}

/** A page that is open since before an update may not know what the service says now. */
function paint() {
  try {
    write(latest);
    broken = false;
  } catch (error) {
    broken = true;
    console.error(error);
    tellLink();
  }
}

function write({ status, atMs }) {
  const verdict = render(status, atMs, history, codes);
  const pill = $("state");
  const before = pill.textContent;
  show(pill, true);
  text(pill, verdict.word);
  tone(pill, verdict.tone);
  text($("about"), `Version ${status.version}, up ${uptime(status.uptimeSeconds)}`);
  document.title = `${verdict.word} – feedsvc`;
  if (before !== verdict.word) announce(`${verdict.title}. ${verdict.why.join(" ")}`);
}

const uptime = (seconds) => duration(seconds < 60 ? seconds : seconds - (seconds % 60));

/** The line under the head: what stands between the service and what is seen here. Empty where nothing does. */
function tellLink() {
  const now = Date.now();
  const [line, colour] = link(now);
  const stale = change.state === "waiting" || (change.state === "connecting" && latest !== null);
  document.body.classList.toggle("stale", stale);
  tone($("link"), colour);
  show($("link"), line !== "");
  show($("retry"), change.state === "waiting");
  text($("link-text"), line);
  if (stale) {
    tone($("state"), "quiet");
    text($("state"), "Disconnected");
    document.title = "Disconnected – feedsvc";
  }
}

let heard = "";
function link(now) {
  const seen = latest ? ` What is below is of ${time(latest.atMs, now)}, ${duration((now - latest.atMs) / 1000)} ago.` : "";
  if (change.state === "connecting")
    return change.since === null ? ["Connecting …", "quiet"] : [`Connecting again …${seen}`, "warn"];
  if (change.state === "waiting") {
    const what = `Disconnected since ${time(change.since, now)}: ${change.reason}.`;
    if (heard !== what) announce((heard = what));
    const left = Math.max(0, Math.ceil((change.retryAt - now) / 1000));
    return [`${what}${seen} Next attempt in ${left} s.`, "bad"];
  }
  heard = "";
  if (broken) return ["This page cannot show what the service says: it is of another version. Reload it.", "bad"];
  if (change.state === "live" && pausedAt !== null)
    return [`Paused at ${time(pausedAt, now)}: what is below does not change. The connection is kept.`, "quiet"];
  return [change.state === "live" && now < moved.untilMs ? moved.text : "", "quiet"];
}

function announce(message) {
  text($("announced"), message);
}

