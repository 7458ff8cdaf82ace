/** Nodes, and what they publish of their NUMA nodes. */
import { Collection, natural, type Row, type Stored } from "../api/collection";
import { amount } from "./amounts";

export interface Condition {
  type: string;
  status: string;
  reason?: string;
  message?: string;
  lastTransitionTime?: string;
}

interface NodeObject extends Stored {
  spec?: { unschedulable?: boolean; taints?: { key: string; value?: string; effect: string }[]; podCIDR?: string };
  status?: {
    capacity?: Record<string, string>;
    allocatable?: Record<string, string>;
    conditions?: Condition[];
    addresses?: { type: string; address: string }[];
    nodeInfo?: Record<string, string>;
  };
}

export interface NodeRow extends Row {
  name: string;
  state: "Ready" | "NotReady" | "Cordoned";
  why: string;
  taints: string[];
  cpu: number;
  memory: number;
  pods: number;
  /** Extended resources: how many there are, and how many may be given out. */
  extended: Map<string, { capacity: number; allocatable: number }>;
  conditions: Condition[];
  facts: [string, string][];
  created: number;
}

/** Whether a name is that of an extended resource. */
export function isExtended(name: string): boolean {
  const domain = name.split("/")[0] ?? "";
  return name.includes("/") && domain !== "kubernetes.io" && !domain.endsWith(".kubernetes.io");
}

function row(node: NodeObject): NodeRow {
  const { name } = node.metadata;
  const status = node.status ?? {};
  const conditions = status.conditions ?? [];
  const ready = conditions.find((c) => c.type === "Ready");
  const isReady = ready?.status === "True";
  const state = !isReady ? "NotReady" : node.spec?.unschedulable ? "Cordoned" : "Ready";
  const extended = new Map<string, { capacity: number; allocatable: number }>();
  for (const [resource, text] of Object.entries(status.capacity ?? {})) {
    if (!isExtended(resource)) continue;
    extended.set(resource, { capacity: amount(text), allocatable: amount(status.allocatable?.[resource]) });
  }
  const info = status.nodeInfo ?? {};
  const address = status.addresses?.find((a) => a.type === "InternalIP")?.address ?? "";
  const facts: [string, string][] = [
    ["Address", address],
    ["Version", info["kubeletVersion"] ?? ""],
    ["Runtime", info["containerRuntimeVersion"] ?? ""],
    ["System", [info["osImage"], info["architecture"]].filter(Boolean).join(", ")],
    ["Kernel", info["kernelVersion"] ?? ""],
    ["Pods' addresses", node.spec?.podCIDR ?? ""],
  ];
  const taints = (node.spec?.taints ?? []).map((t) => `${t.key}${t.value ? `=${t.value}` : ""}:${t.effect}`);
  return {
    key: name,
    sort: natural(name),
    name,
    state,
    why: isReady ? "" : [ready?.reason, ready?.message].filter(Boolean).join(": ") || "it has not reported yet",
    taints,
    cpu: amount(status.allocatable?.["cpu"]),
    memory: amount(status.allocatable?.["memory"]),
    pods: amount(status.allocatable?.["pods"]),
    extended,
    conditions,
    facts: facts.filter(([, value]) => value !== ""),
    created: Date.parse(node.metadata.creationTimestamp ?? "") || 0,
    text: [name, state, address, ...taints, ...extended.keys(), ...Object.entries(node.metadata.labels ?? {}).map(([k, v]) => `${k}=${v}`)]
      .join(" ")
      .toLowerCase(),
  };
}

export const nodes = new Collection<NodeObject, NodeRow>({
  base: "/api/v1",
  plural: "nodes",
  namespaced: false,
  row,
  tell: (before, now) => {
    if (!before) return now ? `new, ${now.state}` : "";
    if (!now) return "gone";
    if (before.state !== now.state) return `${before.state} → ${now.state}${now.why ? `: ${now.why}` : ""}`;
    const changed = [...now.extended].filter(([name, n]) => before.extended.get(name)?.allocatable !== n.allocatable);
    return changed.map(([name, n]) => `${name}: ${before.extended.get(name)?.allocatable ?? 0} → ${n.allocatable} can be given out`).join("; ");
  },
});

interface Amount {
  name: string;
  capacity: string | number;
  allocatable: string | number;
  available: string | number;
}

interface TopologyObject extends Stored {
  zones?: { name: string; type: string; costs?: { name: string; value: number }[]; resources?: Amount[] }[];
  attributes?: { name: string; value: string }[];
}

export interface Zone {
  id: number;
  resources: { name: string; capacity: number; allocatable: number; available: number }[];
  costs: number[];
}

export interface TopologyRow extends Row {
  zones: Zone[];
  policy: string;
}

/** NodeResourceTopologies, which nodes with a topology manager policy publish. */
export const topologies = new Collection<TopologyObject, TopologyRow>({
  base: "/apis/topology.node.k8s.io/v1alpha2",
  plural: "noderesourcetopologies",
  namespaced: false,
  row: (object) => ({
    key: object.metadata.name,
    sort: natural(object.metadata.name),
    text: object.metadata.name,
    policy: object.attributes?.find((a) => a.name === "topologyManagerPolicy")?.value ?? "",
    zones: (object.zones ?? [])
      .filter((zone) => zone.type === "Node")
      .map((zone) => ({
        id: Number(/\d+$/.exec(zone.name)?.[0] ?? 0),
        costs: (zone.costs ?? []).map((c) => c.value),
        resources: (zone.resources ?? []).map((r) => ({
          name: r.name,
          capacity: amount(r.capacity),
          allocatable: amount(r.allocatable),
          available: amount(r.available),
        })),
      })),
  }),
});
