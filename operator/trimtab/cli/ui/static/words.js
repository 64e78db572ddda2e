// Numbers and times as people read them, and texts of others made visible.

const ACTING = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** Characters that act, or turn the direction of writing, as their codes: for JSON.parse. */
export function visible(_, value) {
  if (typeof value !== "string") return value;
  return value.replace(ACTING, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

export const DASH = "–";

export function score(value) {
  if (value == null) return DASH;
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 5e-4)) return value.toExponential(1);
  return value.toFixed(size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : 3);
}

export function percent(value) {
  if (value == null) return DASH;
  return `${(value * 100).toFixed(Math.abs(value) < 0.1 ? 1 : 0)} %`;
}

export function count(value) {
  if (value == null) return DASH;
  const size = Math.abs(value);
  if (size >= 1e9) return `${(value / 1e9).toFixed(2)} G`;
  if (size >= 1e6) return `${(value / 1e6).toFixed(2)} M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  return value.toFixed(size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : 2);
}

export function bytes(value) {
  if (value == null) return DASH;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value.toFixed(unit === 0 || value >= 100 ? 0 : 1)} ${units[unit]}`;
}

export function clock(seconds) {
  if (seconds == null) return DASH;
  const whole = Math.max(0, Math.round(seconds));
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (number) => String(number).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

export function moment(at) {
  return new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short" }).format(new Date(at * 1000));
}

export function ago(at, now) {
  const seconds = Math.max(0, now - at);
  if (seconds < 60) return "just now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}
