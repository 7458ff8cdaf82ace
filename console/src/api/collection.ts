/**
 * The objects of one resource, listed in pages and kept by a watch.
 *
 * Of each object only a row is kept, with what the views show. Changes are told in batches: a view is drawn again a few
 * times a second at most, however many changes there are.
 */
import { signal } from "@preact/signals";
import { ApiError, atEnd, namespace, open, read, sessionSignal } from "./session";

export interface Meta {
  name: string;
  namespace?: string;
  uid: string;
  resourceVersion: string;
  creationTimestamp?: string;
  deletionTimestamp?: string;
  labels?: Record<string, string>;
  annotations?: Record<string, string>;
}

export interface Stored {
  metadata: Meta;
}

/** What every row has. */
export interface Row {
  /** `namespace/name`, or the name. */
  key: string;
  /** By which rows stand in order. */
  sort: string;
  /** What a filter looks through, in small letters. */
  text: string;
}

interface List<O> {
  metadata: { resourceVersion: string; continue?: string; remainingItemCount?: number };
  items?: O[];
}

interface Change<O> {
  type: "ADDED" | "MODIFIED" | "DELETED" | "BOOKMARK" | "ERROR";
  object: O & { code?: number; message?: string };
}

export interface Kind<O extends Stored, T extends Row> {
  /** `/api/v1` or `/apis/GROUP/VERSION`. */
  base: string;
  plural: string;
  namespaced: boolean;
  row: (object: O) => T;
  /** What a change is, in a few words; nothing if it is not worth a line. */
  tell?: (before: T | undefined, now: T | undefined) => string;
  /** Most rows; the oldest go. */
  most?: number;
}

export type State = "idle" | "loading" | "live" | "denied" | "absent" | "broken";

/** A change that was seen. */
export interface Seen {
  id: number;
  at: number;
  plural: string;
  key: string;
  what: string;
}

const PAGE = 500;
const BATCH = 120;
const SEEN = 500;

/** The last changes of all collections, newest first. */
export const seen = signal<Seen[]>([]);
let seenCount = 0;
let unseen: Seen[] = [];

function tellSeen(plural: string, key: string, what: string): void {
  unseen.push({ id: ++seenCount, at: Date.now(), plural, key, what });
  if (unseen.length > 1) return;
  setTimeout(() => {
    const fresh = unseen.reverse();
    unseen = [];
    seen.value = fresh.concat(seen.value).slice(0, SEEN);
  }, BATCH);
}

/** Waits, unless it ends before. */
function pause(milliseconds: number, end: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    end.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}

/** The lines of an answer as they come; of each the first `most` letters, however long it goes on. */
export async function* lines(response: Response, most = Infinity): AsyncGenerator<string> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const parts = value.split("\n");
    const last = parts.pop() ?? "";
    for (const part of parts) {
      const line = (rest + part).slice(0, most);
      rest = "";
      if (line !== "") yield line;
    }
    if (rest.length < most) rest = (rest + last).slice(0, most);
  }
  if (rest !== "") yield rest;
}

export class Collection<O extends Stored, T extends Row> {
  readonly state = signal<State>("idle");
  /** Why it is denied, absent or broken. */
  readonly why = signal("");
  /** Rises when rows have changed. */
  readonly version = signal(0);
  private items = new Map<string, T>();
  private sorted: T[] | null = null;
  private life: AbortController | null = null;
  private pending = false;
  /** The resourceVersion up to which all is known; empty when everything has to be listed. */
  private known = "";

  constructor(readonly kind: Kind<O, T>) {
    atEnd(() => {
      this.close();
      seen.value = [];
    });
    if (kind.namespaced) {
      let before = namespace.value;
      namespace.subscribe((now) => {
        if (now === before) return;
        before = now;
        const wasOpen = this.life !== null;
        this.close();
        if (wasOpen) this.open();
      });
    }
  }

  /** Begins to read, unless that has begun. */
  open(): this {
    if (this.life === null) {
      this.life = new AbortController();
      void this.run(AbortSignal.any([this.life.signal, sessionSignal()]));
    }
    return this;
  }

  /** Stops and forgets everything. */
  close(): void {
    this.life?.abort();
    this.life = null;
    this.items = new Map();
    this.sorted = null;
    this.state.value = "idle";
    this.why.value = "";
    this.version.value++;
  }

  /** Tries again after a refusal. */
  again(): void {
    this.close();
    this.open();
  }

  get(key: string): T | undefined {
    return this.items.get(key);
  }

  get size(): number {
    return this.items.size;
  }

  /** All rows in their order. */
  rows(): T[] {
    this.sorted ??= [...this.items.values()].sort((a, b) => (a.sort < b.sort ? -1 : a.sort > b.sort ? 1 : 0));
    return this.sorted;
  }

  private path(): string {
    const { base, plural, namespaced } = this.kind;
    const within = namespaced && namespace.value !== "" ? `/namespaces/${encodeURIComponent(namespace.value)}` : "";
    return `${base}${within}/${plural}`;
  }

  private async run(end: AbortSignal): Promise<void> {
    let failures = 0;
    this.known = "";
    while (!end.aborted) {
      try {
        if (this.known === "") await this.list(end);
        failures = 0;
        await this.watch(end);
        continue;
      } catch (error) {
        if (end.aborted) return;
        if (error instanceof ApiError) {
          if (error.status === 410) {
            this.known = "";
            continue;
          }
          if (error.status === 403 || error.status === 401) return this.stop("denied", error.message);
          if (error.status === 404) return this.stop("absent", error.message);
        }
        failures += 1;
        // a watch that is cut off once is begun again, and nobody needs to know
        if (failures > 2 || error instanceof ApiError) {
          this.why.value = error instanceof Error ? error.message : String(error);
          this.state.value = "broken";
        }
      }
      await pause(Math.min(300 * 2 ** failures, 15_000), end);
    }
  }

  private stop(state: State, why: string): void {
    this.items = new Map();
    this.sorted = null;
    this.why.value = why;
    this.state.value = state;
    this.version.value++;
  }

  /** Reads all pages; what is there already stays until the new list is whole. */
  private async list(end: AbortSignal): Promise<void> {
    const first = this.items.size === 0;
    if (this.state.value !== "live") this.state.value = "loading";
    const fresh = first ? this.items : new Map<string, T>();
    let more = "";
    for (;;) {
      const query = `?limit=${PAGE}${more === "" ? "" : `&continue=${encodeURIComponent(more)}`}`;
      const page: List<O> = await read(this.path() + query, end);
      if (end.aborted) throw new Error("ended");
      for (const object of page.items ?? []) {
        const row = this.kind.row(object);
        fresh.set(row.key, row);
      }
      if (first) this.touch();
      more = page.metadata.continue ?? "";
      if (more === "") {
        this.items = fresh;
        this.known = page.metadata.resourceVersion;
        this.trim();
        this.touch();
        return;
      }
    }
  }

  private async watch(end: AbortSignal): Promise<void> {
    const query = `?watch=true&allowWatchBookmarks=true&resourceVersion=${encodeURIComponent(this.known)}`;
    const response = await open(this.path() + query, { headers: { Accept: "application/json" } }, end);
    this.state.value = "live";
    this.why.value = "";
    for await (const line of lines(response)) {
      const change = JSON.parse(line) as Change<O>;
      if (change.type === "ERROR") throw new ApiError(change.object.code ?? 500, "", change.object.message ?? "the watch ended");
      this.known = change.object.metadata.resourceVersion;
      if (change.type !== "BOOKMARK") this.apply(change);
    }
  }

  private apply(change: Change<O>): void {
    const row = this.kind.row(change.object);
    const before = this.items.get(row.key);
    const gone = change.type === "DELETED";
    if (gone) this.items.delete(row.key);
    else this.items.set(row.key, row);
    const what = this.kind.tell?.(before, gone ? undefined : row) ?? "";
    if (what !== "") tellSeen(this.kind.plural, row.key, what);
    this.trim();
    this.touch();
  }

  private trim(): void {
    const most = this.kind.most;
    // some more are let stand, so that not each event costs a sort
    if (most === undefined || this.items.size <= most * 1.1) return;
    const keep = this.rows().slice(0, most);
    this.items = new Map(keep.map((row) => [row.key, row]));
  }

  private touch(): void {
    this.sorted = null;
    if (this.pending) return;
    this.pending = true;
    setTimeout(() => {
      this.pending = false;
      this.version.value++;
    }, BATCH);
  }
}

/** A text by which `node-10` comes after `node-9`. */
export function natural(text: string): string {
  return text.replace(/\d+/g, (digits) => digits.padStart(10, "0"));
}
