/** Pods: their state, told as `davit explain` tells it. */
import { Collection, natural, type Row, type Stored } from "../api/collection";
import { amount } from "./amounts";
import { isExtended, type Condition } from "./nodes";

interface ContainerState {
  waiting?: { reason?: string; message?: string };
  running?: { startedAt?: string };
  terminated?: { reason?: string; message?: string; exitCode: number };
}

interface ContainerStatus {
  name: string;
  ready: boolean;
  restartCount: number;
  state?: ContainerState;
  allocatedResourcesStatus?: { name: string; resources?: { resourceID: string; health?: string }[] }[];
}

interface Container {
  name: string;
  image?: string;
  restartPolicy?: string;
  resources?: { requests?: Record<string, string>; limits?: Record<string, string>; claims?: { name: string; request?: string }[] };
}

interface PodObject extends Stored {
  spec?: {
    nodeName?: string;
    containers?: Container[];
    initContainers?: Container[];
    resourceClaims?: { name: string; resourceClaimName?: string; resourceClaimTemplateName?: string }[];
    schedulerName?: string;
  };
  status?: {
    phase?: string;
    reason?: string;
    message?: string;
    podIP?: string;
    qosClass?: string;
    conditions?: Condition[];
    containerStatuses?: ContainerStatus[];
    initContainerStatuses?: ContainerStatus[];
    resourceClaimStatuses?: { name: string; resourceClaimName?: string }[];
  };
}

export type PodState = "Pending" | "Refused" | "Waiting" | "Running" | "Ended" | "Failed" | "Terminating";

export interface ContainerRow {
  name: string;
  image: string;
  init: boolean;
  ready: boolean;
  restarts: number;
  state: "waiting" | "running" | "ended" | "unknown";
  reason: string;
  message: string;
}

export interface PodRow extends Row {
  name: string;
  namespace: string;
  uid: string;
  node: string;
  state: PodState;
  /** In a sentence, why it is not running; empty for what runs. */
  why: string;
  ready: string;
  restarts: number;
  address: string;
  qos: string;
  containers: ContainerRow[];
  conditions: Condition[];
  /** Extended resources that it asks for. */
  wants: [string, number][];
  /** Names of the claims in its namespace that it uses. */
  claims: string[];
  created: number;
}

function container(spec: Container, init: boolean, statuses: ContainerStatus[]): ContainerRow {
  const status = statuses.find((s) => s.name === spec.name);
  const state = status?.state ?? {};
  const told = state.waiting ?? state.terminated;
  return {
    name: spec.name,
    image: spec.image ?? "",
    init,
    ready: status?.ready ?? false,
    restarts: status?.restartCount ?? 0,
    state: state.waiting ? "waiting" : state.terminated ? "ended" : state.running ? "running" : "unknown",
    reason: told?.reason === "Completed" ? "" : (told?.reason ?? ""),
    message: told?.message ?? "",
  };
}

function isStuck(one: ContainerRow): boolean {
  return one.state === "waiting" && one.reason !== "" && one.reason !== "ContainerCreating" && one.reason !== "PodInitializing";
}

function stateOf(pod: PodObject, containers: ContainerRow[]): PodState {
  const status = pod.status ?? {};
  const bound = (pod.spec?.nodeName ?? "") !== "";
  if (pod.metadata.deletionTimestamp) return "Terminating";
  if (status.phase === "Failed" && !status.containerStatuses?.length && status.reason) return "Refused";
  if (status.phase === "Succeeded") return "Ended";
  if (status.phase === "Failed") return "Failed";
  if (!bound) return "Pending";
  return status.phase === "Running" && !containers.some(isStuck) ? "Running" : "Waiting";
}

function whyOf(pod: PodObject, state: PodState, containers: ContainerRow[]): string {
  const status = pod.status ?? {};
  const both = (reason?: string, message?: string) => [reason, message].filter(Boolean).join(": ");
  if (state === "Running") return "";
  if (state === "Pending") {
    const scheduled = status.conditions?.find((c) => c.type === "PodScheduled");
    return scheduled ? (scheduled.message ?? scheduled.reason ?? "") : "no scheduler has looked at it yet";
  }
  if (state === "Refused" || state === "Failed") {
    const ended = containers.find((c) => c.state === "ended" && c.reason !== "");
    return both(status.reason, status.message) || (ended ? both(`${ended.name} ${ended.reason}`, ended.message) : "");
  }
  if (state === "Waiting") {
    const stuck = containers.find(isStuck) ?? containers.find((c) => c.reason !== "");
    return status.message ?? (stuck ? both(`${stuck.name}: ${stuck.reason}`, stuck.message) : "");
  }
  return both(status.reason, status.message);
}

function row(pod: PodObject): PodRow {
  const { name, namespace = "" } = pod.metadata;
  const spec = pod.spec ?? {};
  const status = pod.status ?? {};
  const containers = [
    ...(spec.initContainers ?? []).map((c) => container(c, true, status.initContainerStatuses ?? [])),
    ...(spec.containers ?? []).map((c) => container(c, false, status.containerStatuses ?? [])),
  ];
  const main = containers.filter((c) => !c.init);
  const state = stateOf(pod, containers);
  const why = whyOf(pod, state, containers);
  const wants = new Map<string, number>();
  for (const one of spec.containers ?? []) {
    for (const [resource, text] of Object.entries(one.resources?.limits ?? {})) {
      if (isExtended(resource)) wants.set(resource, (wants.get(resource) ?? 0) + amount(text));
    }
  }
  const made = new Map((status.resourceClaimStatuses ?? []).map((c) => [c.name, c.resourceClaimName ?? ""]));
  const claims = (spec.resourceClaims ?? []).map((c) => c.resourceClaimName ?? made.get(c.name) ?? "").filter((c) => c !== "");
  const node = spec.nodeName ?? "";
  return {
    key: `${namespace}/${name}`,
    sort: natural(`${namespace}/${name}`),
    text: [namespace, name, state, node, why, status.podIP ?? "", ...wants.keys(), ...claims].join(" ").toLowerCase(),
    name,
    namespace,
    uid: pod.metadata.uid,
    node,
    state,
    why,
    ready: `${main.filter((c) => c.ready).length}/${main.length}`,
    restarts: containers.reduce((sum, c) => sum + c.restarts, 0),
    address: status.podIP ?? "",
    qos: status.qosClass ?? "",
    containers,
    conditions: status.conditions ?? [],
    wants: [...wants],
    claims,
    created: Date.parse(pod.metadata.creationTimestamp ?? "") || 0,
  };
}

export const pods = new Collection<PodObject, PodRow>({
  base: "/api/v1",
  plural: "pods",
  namespaced: true,
  row,
  tell: (before, now) => {
    if (!before) return now ? `new, ${now.state}` : "";
    if (!now) return "gone";
    if (before.state !== now.state) return `${before.state} → ${now.state}${now.why ? `: ${now.why}` : ""}`;
    return before.node !== now.node ? `bound to node ${now.node}` : "";
  },
});
