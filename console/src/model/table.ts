/**
 * A node's table of devices. What a node's agent answers is taken for one only where it is one: whoever runs the node has it
 * answer what he likes.
 */

export interface Holder {
  namespace: string;
  pod: string;
  uid: string;
  container: string;
  since?: string;
}

export interface TableDevice {
  resource: string;
  id: string;
  claim?: string;
  health: string;
  reason?: string;
  numaNodes?: number[];
  holders?: Holder[];
}

export interface NumaPlace {
  id: number;
  cpus: string;
  memory: number;
}

/** What a node's agent says of its devices at `/devices`. */
export interface Table {
  node: string;
  generation: number;
  devices: TableDevice[];
  held?: TableDevice[];
  empty?: string[];
  numa?: NumaPlace[];
}

/** Letters of the longest table that is read. */
export const LONGEST_TABLE = 16 << 20;
/** Most devices of a node, and most containers, NUMA nodes and resources. */
const DEVICES = 65_536;
const OTHERS = 1024;
/** Letters of a name or a reason that are kept. */
const LETTERS = 1024;

class Strange extends Error {
  constructor(where: string) {
    super(`its devices are told in a form that is not known (${where})`);
  }
}

function object(told: unknown, where: string): Record<string, unknown> {
  if (typeof told !== "object" || told === null || Array.isArray(told)) throw new Strange(where);
  return told as Record<string, unknown>;
}

function list<T>(told: unknown, most: number, where: string, of: (one: unknown) => T): T[] {
  if (told === undefined || told === null) return [];
  if (!Array.isArray(told) || told.length > most) throw new Strange(where);
  return told.map(of);
}

function text(told: unknown, where: string): string {
  if (told === undefined || told === null) return "";
  if (typeof told !== "string") throw new Strange(where);
  return told.slice(0, LETTERS);
}

function number(told: unknown, where: string): number {
  if (typeof told !== "number" || !Number.isFinite(told)) throw new Strange(where);
  return told;
}

function holder(told: unknown): Holder {
  const of = object(told, "holders");
  const field = (name: string) => text(of[name], name);
  return { namespace: field("namespace"), pod: field("pod"), uid: field("uid"), container: field("container"), since: field("since") };
}

function device(told: unknown): TableDevice {
  const of = object(told, "devices");
  const field = (name: string) => text(of[name], name);
  return {
    resource: field("resource"),
    id: field("id"),
    claim: field("claim"),
    health: field("health"),
    reason: field("reason"),
    numaNodes: list(of.numaNodes, OTHERS, "numaNodes", (id) => number(id, "numaNodes")),
    holders: list(of.holders, OTHERS, "holders", holder),
  };
}

function place(told: unknown): NumaPlace {
  const of = object(told, "numa");
  return { id: number(of.id, "id"), cpus: text(of.cpus, "cpus"), memory: number(of.memory, "memory") };
}

/** The table of a node, of whatever its agent has answered; it is about that node, whatever name it tells. Throws why it is none. */
export function tableOf(node: string, told: unknown): Table {
  const of = object(told, "table");
  if (!Array.isArray(of.devices)) throw new Strange("devices");
  return {
    node,
    generation: number(of.generation, "generation"),
    devices: list(of.devices, DEVICES, "devices", device),
    held: list(of.held, DEVICES, "held", device),
    empty: list(of.empty, OTHERS, "empty", (name) => text(name, "empty")),
    numa: list(of.numa, OTHERS, "numa", place),
  };
}
