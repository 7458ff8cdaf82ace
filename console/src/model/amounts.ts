/** Quantities, sets of CPUs and times, as numbers and as text. */

const UNITS: Record<string, number> = {
  n: 1e-9, u: 1e-6, m: 1e-3, "": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18,
  Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, Pi: 2 ** 50, Ei: 2 ** 60,
};

/** A Kubernetes quantity as a number; 0 for what is none. */
export function amount(text: string | number | undefined): number {
  if (typeof text === "number") return text;
  const parts = /^([+-]?[\d.]+(?:[eE][+-]?\d+)?)([a-zA-Z]*)$/.exec(text ?? "");
  if (!parts) return 0;
  return Number(parts[1]) * (UNITS[parts[2] ?? ""] ?? 0);
}

/** Bytes for people. */
export function bytes(count: number): string {
  const names = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let step = 0;
  let left = count;
  while (left >= 1024 && step < names.length - 1) {
    left /= 1024;
    step += 1;
  }
  return `${left >= 100 || Number.isInteger(left) ? Math.round(left) : left.toFixed(1)} ${names[step]}`;
}

/** An amount of a resource for people, by what the resource is. */
export function shown(resource: string, count: number): string {
  if (resource === "memory" || resource === "ephemeral-storage" || resource.startsWith("hugepages-")) return bytes(count);
  return Number.isInteger(count) ? String(count) : count.toFixed(2);
}

/** The numbers of a list like `0-3,8`, at most 4096. */
export function cpuNumbers(text: string): number[] {
  const out: number[] = [];
  for (const part of text.split(",")) {
    const range = /^(\d+)(?:-(\d+))?$/.exec(part.trim());
    if (!range) continue;
    const last = Number(range[2] ?? range[1]);
    for (let n = Number(range[1]); n <= last && out.length < 4096; n++) out.push(n);
  }
  return out;
}

/** `1 node`, `2 nodes`. */
export function count(n: number, one: string, many = `${one}s`): string {
  return `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
}

/** How long ago a time was, in one unit. */
export function age(then: number, now: number): string {
  if (!then) return "";
  const seconds = Math.max(0, Math.round((now - then) / 1000));
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86_400)} d`;
}
