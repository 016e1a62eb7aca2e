// Numbers, times and durations as people read them. Pure; an unknown value is told as such.

export const UNKNOWN = "not known";

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

export const count = (value) => whole.format(value);

export function milliseconds(value) {
  if (value < 1000) return `${whole.format(value)} ms`;
  return value < 60_000 ? `${(value / 1000).toFixed(1)} s` : duration(value / 1000);
}

/** Two units at the most: 3 d 4 h, 4 h 05 min, 5 min 10 s, 7 s. */
export function duration(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  const [d, h, m] = [Math.floor(s / 86_400), Math.floor(s / 3600) % 24, Math.floor(s / 60) % 60];
  if (d) return h ? `${d} d ${h} h` : `${d} d`;
  if (h) return m ? `${h} h ${String(m).padStart(2, "0")} min` : `${h} h`;
  if (m) return s % 60 ? `${m} min ${String(s % 60).padStart(2, "0")} s` : `${m} min`;
  return `${s} s`;
}

/** Hours, as operators size an oplog; what is shorter than one in minutes and seconds. */
export function hours(seconds) {
  if (seconds === null) return UNKNOWN;
  const h = seconds / 3600;
  return h < 1 ? duration(seconds) : `${h.toFixed(h < 10 ? 2 : 1)} h`;
}

export function percent(ratio) {
  const value = ratio * 100;
  if (value > 0 && value < 1) return "< 1 %";
  return `${value < 10 && value % 1 ? value.toFixed(1) : Math.round(value)} %`;
}

/** The time of day; with the date where it is not of the last 20 hours. */
export function time(ms, nowMs) {
  const text = clock.format(ms);
  return Math.abs(nowMs - ms) < 72_000_000 ? text : `${day.format(ms)} ${text}`;
}

export function scopeName(scope) {
  if (scope.level === "deployment") return "whole deployment";
  return scope.level === "database" ? `${scope.database}.*` : `${scope.database}.${scope.collection}`;
}

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
