/**
 * All devices as one list: those of plugins, as the nodes' device tables tell them, and those of DRA drivers, as slices
 * and claims tell them.
 */
import { signal } from "@preact/signals";
import { lines, natural, type Row } from "../api/collection";
import { ApiError, atEnd, DEADLINE, namespace, open, sessionSignal } from "../api/session";
import { nodes } from "./nodes";
import { pods } from "./pods";
import { claims, slices, type ClaimRow, type SliceDevice, type SliceRow } from "./claims";
import { LONGEST_TABLE, tableOf, type Holder, type NumaPlace, type Table, type TableDevice } from "./table";

export type { Holder, NumaPlace, Table, TableDevice };

export type DeviceState = "Free" | "Held" | "Unhealthy" | "Unknown" | "Tainted";

export interface DeviceRow extends Row {
  node: string;
  /** The extended resource, or the driver. */
  source: string;
  id: string;
  state: DeviceState;
  why: string;
  numa: number[];
  holder: string;
  /** Where a click on the holder leads. */
  holderKey: string;
  claim: string;
  /** What a driver says of it. */
  details?: SliceDevice;
  fromDriver: boolean;
}

/** Device tables by node, or why there is none. */
export const tables = signal(new Map<string, Table | string>());
/** How many tables are still to be read. */
export const reading = signal(0);

/** Up to so many nodes are followed; of more, the tables are read when somebody asks for them. */
export const FOLLOWED = 24;
const AT_ONCE = 6;
const AGAIN = 2000;
const LONGEST = 60_000;

let fresh: [string, Table | string][] = [];
const followed = new Map<string, AbortController>();

atEnd(() => {
  for (const one of followed.values()) one.abort();
  followed.clear();
  fresh = [];
  tables.value = new Map();
  reading.value = 0;
  lookedAt = "";
});

function put(node: string, table: Table | string): void {
  fresh.push([node, table]);
  if (fresh.length > 1) return;
  setTimeout(() => {
    const next = new Map(tables.value);
    for (const [name, told] of fresh) next.set(name, told);
    fresh = [];
    tables.value = next;
  }, 100);
}

function path(node: string): string {
  return `/api/v1/nodes/${encodeURIComponent(node)}/proxy/devices`;
}

function text(error: unknown): string {
  return (error instanceof Error ? error.message : String(error)).slice(0, 1024);
}

/** Reads the table of a node once. */
async function readTable(node: string): Promise<Table> {
  const response = await open(path(node), {}, AbortSignal.any([AbortSignal.timeout(DEADLINE), sessionSignal()]));
  let told = "";
  for await (const line of lines(response, LONGEST_TABLE)) {
    told += line;
    if (told.length >= LONGEST_TABLE) throw new Error("its table of devices is too long");
  }
  return tableOf(node, JSON.parse(told));
}

/** Reads the tables of nodes, some at once. */
export async function readTables(nodes: string[]): Promise<void> {
  if (reading.value > 0) return;
  const end = sessionSignal();
  const queue = [...nodes];
  reading.value = queue.length;
  const work = async () => {
    for (let node = queue.shift(); node !== undefined && !end.aborted; node = queue.shift()) {
      put(node, await readTable(node).catch(text));
      reading.value = Math.max(0, reading.value - 1);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  reading.value = 0;
}

/** Follows the table of a node until the session ends, or `unfollow`. */
function follow(node: string): void {
  if (followed.has(node)) return;
  const life = new AbortController();
  followed.set(node, life);
  void (async () => {
    let wait = AGAIN;
    while (!life.signal.aborted) {
      try {
        const response = await open(`${path(node)}?watch=true`, {}, life.signal);
        wait = AGAIN;
        for await (const line of lines(response, LONGEST_TABLE)) put(node, tableOf(node, JSON.parse(line)));
      } catch (error) {
        if (life.signal.aborted) return;
        // a connection that broke is no news of the devices
        if (error instanceof ApiError || typeof tables.value.get(node) !== "object") put(node, text(error));
        // what is not allowed or not there will not be so in a moment
        if (error instanceof ApiError && (error.status === 403 || error.status === 404)) return;
      }
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(wait * 2, LONGEST);
    }
  })();
}

/** Ends following, but for those that are named. */
function unfollow(but: string[]): void {
  for (const [node, life] of followed) {
    if (but.includes(node)) continue;
    life.abort();
    followed.delete(node);
  }
}

/** `namespace/pod`. */
export function holderName(holder: Holder): string {
  return `${holder.namespace}/${holder.pod}`;
}

function ofTable(node: string, device: TableDevice): DeviceRow {
  const holder = device.holders?.[0];
  const name = holder ? holderName(holder) : "";
  const healthy = device.health === "Healthy";
  const state = !healthy ? (device.health === "Unhealthy" ? "Unhealthy" : "Unknown") : holder ? "Held" : "Free";
  const holders = (device.holders ?? []).map((h) => `${holderName(h)} ${h.container}`).join(" ");
  return {
    key: `p/${node}/${device.resource}/${device.id}`,
    sort: natural(`${node}/${device.resource}/${device.id}`),
    text: [node, device.resource, device.id, state, holders, device.reason].join(" ").toLowerCase(),
    node,
    source: device.resource,
    id: device.id,
    state,
    why: device.reason ?? "",
    numa: device.numaNodes ?? [],
    holder: name,
    holderKey: name,
    claim: device.claim ?? "",
    fromDriver: false,
  };
}

function ofSlice(slice: SliceRow, device: SliceDevice, claim: ClaimRow | undefined): DeviceRow {
  const holder = claim ? (claim.pods[0] ? `${claim.namespace}/${claim.pods[0]}` : "") : "";
  const state = device.taints.length > 0 ? "Tainted" : claim ? "Held" : "Free";
  const attributes = device.attributes.map(([k, v]) => `${k}=${v}`).join(" ");
  return {
    key: `d/${slice.driver}/${slice.pool}/${device.name}`,
    sort: natural(`${slice.node}/${slice.driver}/${slice.pool}/${device.name}`),
    text: [slice.node, slice.driver, slice.pool, device.name, state, claim?.key, holder, attributes].join(" ").toLowerCase(),
    node: slice.node,
    source: slice.driver,
    id: slice.pool === slice.node ? device.name : `${slice.pool}/${device.name}`,
    state,
    why: device.taints.join(", "),
    numa: device.numa,
    holder: holder || (claim ? `claim ${claim.key}` : ""),
    holderKey: holder,
    claim: claim?.key ?? "",
    details: device,
    fromDriver: true,
  };
}

/** Rows of a table or a slice are made once, and again when it or a claim of its devices has changed. */
const tableRows = new WeakMap<Table, DeviceRow[]>();
const sliceRows = new WeakMap<SliceRow, { claims: (ClaimRow | undefined)[]; rows: DeviceRow[] }>();

function rowsOfTable(table: Table): DeviceRow[] {
  let rows = tableRows.get(table);
  if (!rows) tableRows.set(table, (rows = table.devices.map((d) => ofTable(table.node, d))));
  return rows;
}

function rowsOfSlice(slice: SliceRow, held: Map<string, ClaimRow>): DeviceRow[] {
  const of = slice.devices.map((d) => held.get(`${slice.driver}/${slice.pool}/${d.name}`));
  const known = sliceRows.get(slice);
  if (known && of.every((claim, at) => claim === known.claims[at])) return known.rows;
  const rows = slice.devices.map((d, at) => ofSlice(slice, d, of[at]));
  sliceRows.set(slice, { claims: of, rows });
  return rows;
}

let made: { from: unknown[]; rows: DeviceRow[] } = { from: [], rows: [] };

/** Every device that is known, in order of node, source and name. Reads signals: it is for views and effects. */
export function allDevices(): DeviceRow[] {
  const from = [tables.value, slices.version.value, claims.version.value, namespace.value];
  if (from.every((one, at) => one === made.from[at])) return made.rows;
  const held = new Map<string, ClaimRow>();
  for (const claim of claims.rows()) for (const d of claim.devices) held.set(`${d.driver}/${d.pool}/${d.device}`, claim);
  const rows: DeviceRow[] = [];
  for (const table of tables.value.values()) if (typeof table !== "string") rows.push(...rowsOfTable(table));
  for (const slice of slices.rows()) rows.push(...rowsOfSlice(slice, held));
  rows.sort((a, b) => (a.sort < b.sort ? -1 : a.sort > b.sort ? 1 : 0));
  made = { from, rows };
  return rows;
}

/** Numbers of one extended resource or one driver. */
export interface Source {
  name: string;
  fromDriver: boolean;
  nodes: number;
  total: number;
  held: number;
  bad: number;
}

let counted: { from: unknown[]; sources: Source[] } = { from: [], sources: [] };

/**
 * What there is of each resource and driver. Resources of nodes whose tables are not read are counted by what the nodes
 * say of themselves and what pods ask for. Reads signals.
 */
export function sources(): Source[] {
  const rows = allDevices();
  const from = [rows, nodes.version.value, pods.version.value];
  if (from.every((one, at) => one === counted.from[at])) return counted.sources;
  const found = new Map<string, Source & { on: Set<string> }>();
  const of = (name: string, fromDriver: boolean) => {
    const key = `${fromDriver}/${name}`;
    let source = found.get(key);
    if (!source) found.set(key, (source = { name, fromDriver, nodes: 0, total: 0, held: 0, bad: 0, on: new Set() }));
    return source;
  };
  for (const row of rows) {
    const source = of(row.source, row.fromDriver);
    source.total += 1;
    if (row.holder !== "") source.held += 1;
    if (row.state === "Unhealthy" || row.state === "Unknown" || row.state === "Tainted") source.bad += 1;
    if (row.node !== "") source.on.add(row.node);
  }
  const unread = new Set<string>();
  for (const node of nodes.rows()) {
    if (typeof tables.value.get(node.name) === "object") continue;
    unread.add(node.name);
    for (const [name, n] of node.extended) {
      if (n.capacity === 0) continue;
      const source = of(name, false);
      source.total += n.capacity;
      source.bad += Math.max(0, n.capacity - n.allocatable);
      source.on.add(node.name);
    }
  }
  for (const pod of pods.rows()) {
    if (!unread.has(pod.node) || pod.state === "Ended" || pod.state === "Failed" || pod.state === "Refused") continue;
    for (const [name, n] of pod.wants) of(name, false).held += n;
  }
  const list = [...found.values()].map(({ on, ...source }) => ({ ...source, nodes: on.size }));
  list.sort((a, b) => (a.name < b.name ? -1 : 1));
  counted = { from, sources: list };
  return list;
}

/** The node whose page is open. */
let lookedAt = "";

/** Follows the table of a node as long as one looks at it; the answer ends that. */
export function lookAt(node: string): () => void {
  lookedAt = node;
  follow(node);
  return () => {
    if (lookedAt === node) lookedAt = "";
    followNodes();
  };
}

/** Follows the tables of all nodes where they are few, else only that of the node one looks at; forgets those of nodes that are gone. */
export function followNodes(): void {
  const rows = nodes.rows();
  const names = rows.length > FOLLOWED ? [] : rows.map((node) => node.name);
  if (lookedAt !== "" && nodes.get(lookedAt)) names.push(lookedAt);
  unfollow(names);
  for (const name of names) follow(name);
  const stay = [...tables.value].filter(([name]) => nodes.get(name));
  if (stay.length !== tables.value.size) tables.value = new Map(stay);
}
