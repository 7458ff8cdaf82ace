/** A node's picture: its NUMA nodes with CPUs, memory and devices, and who holds what of them. */
import { amount, bytes, cpuNumbers } from "./amounts";
import type { SliceRow } from "./claims";
import { holderName, type DeviceRow, type Table } from "./devices";
import type { NodeRow, TopologyRow } from "./nodes";

/** One who holds something: a pod. */
export interface HolderMark {
  name: string;
  /** Which of the few colours of holders it has. */
  hue: number;
  cpus: number;
  memory: number;
  devices: number;
}

export interface Cpu {
  number: number;
  holder: string;
}

export interface Share {
  holder: string;
  kind: string;
  size: number;
}

export interface Place {
  /** Of the NUMA node; -1 for what has no place, -2 for what is on several. */
  id: number;
  cpus: Cpu[];
  /** How many CPUs there are where their numbers are not known. */
  cpuCount: number;
  memory: number;
  shares: Share[];
  devices: DeviceRow[];
}

export interface Picture {
  places: Place[];
  holders: Map<string, HolderMark>;
  /** Whether CPUs are known by their numbers. */
  numbered: boolean;
}

export const HUES = 6;
const SEVERAL = -2;
const NOWHERE = -1;

function place(id: number, cpus: number[] = [], cpuCount = cpus.length, memory = 0): Place {
  return { id, cpus: cpus.map((number) => ({ number, holder: "" })), cpuCount, memory, shares: [], devices: [] };
}

/** The NUMA nodes, by whoever knows them best: the agent's table, what the node publishes, or else as if there were one. */
function empty(node: NodeRow, table: Table | undefined, topology: TopologyRow | undefined): Place[] {
  if (table?.numa?.length) return table.numa.map((n) => place(n.id, cpuNumbers(n.cpus), undefined, n.memory));
  if (topology?.zones.length) {
    return topology.zones.map((zone) => {
      const of = (name: string) => zone.resources.find((r) => r.name === name)?.capacity ?? 0;
      return place(zone.id, [], of("cpu"), of("memory"));
    });
  }
  return [place(0, [], node.cpu, node.memory)];
}

/** Draws together what table, topology and devices say. `devices` are those of the node. */
export function picture(node: NodeRow, table: Table | undefined, topology: TopologyRow | undefined, devices: DeviceRow[]): Picture {
  const places = empty(node, table, topology).sort((a, b) => a.id - b.id);
  const holders = new Map<string, HolderMark>();
  const mark = (name: string): HolderMark => {
    let known = holders.get(name);
    if (!known) holders.set(name, (known = { name, hue: holders.size % HUES, cpus: 0, memory: 0, devices: 0 }));
    return known;
  };
  const numbers = new Map(places.flatMap((p) => p.cpus.map((cpu): [number, Cpu] => [cpu.number, cpu])));
  for (const held of table?.held ?? []) {
    const holder = held.holders?.[0];
    if (!holder) continue;
    const name = holderName(holder);
    if (held.resource === "cpu") {
      const taken = cpuNumbers(held.id);
      mark(name).cpus += taken.length;
      for (const n of taken) {
        const cpu = numbers.get(n);
        if (cpu) cpu.holder = name;
      }
    } else if (held.resource === "memory" || held.resource.startsWith("hugepages-")) {
      const size = amount(held.id);
      const on = held.numaNodes ?? [];
      mark(name).memory += size;
      for (const id of on) places.find((p) => p.id === id)?.shares.push({ holder: name, kind: held.resource, size: size / on.length });
    }
  }
  const extra = new Map<number, Place>();
  for (const device of devices) {
    if (device.holder !== "") mark(device.holder).devices += 1;
    const [one, ...others] = device.numa;
    const id = one === undefined ? (places.length === 1 ? places[0]!.id : NOWHERE) : others.length > 0 ? SEVERAL : one;
    const known = places.find((p) => p.id === id) ?? extra.get(id) ?? place(id);
    if (id < 0 || !places.includes(known)) extra.set(id, known);
    known.devices.push(device);
  }
  return { places: [...places, ...[...extra.values()].sort((a, b) => b.id - a.id)], holders, numbered: numbers.size > 0 };
}

/** What a holder holds, in words. */
export function holdings(mark: HolderMark): string {
  return [
    mark.cpus > 0 ? `${mark.cpus} CPU${mark.cpus === 1 ? "" : "s"}` : "",
    mark.memory > 0 ? bytes(mark.memory) : "",
    mark.devices > 0 ? `${mark.devices} device${mark.devices === 1 ? "" : "s"}` : "",
  ].filter((part) => part !== "").join(", ");
}

/** Slices of one node are what its page shows of drivers. */
export function slicesOf(node: string, slices: SliceRow[]): SliceRow[] {
  return slices.filter((slice) => slice.node === node);
}
