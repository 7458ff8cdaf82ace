/** Events, and the records that davit's scheduler and nodes put into their annotations. */
import { Collection, type Row, type Stored } from "../api/collection";

interface EventObject extends Stored {
  type?: string;
  reason?: string;
  message?: string;
  count?: number;
  firstTimestamp?: string;
  lastTimestamp?: string;
  eventTime?: string;
  series?: { count?: number; lastObservedTime?: string };
  involvedObject?: { kind?: string; namespace?: string; name?: string; uid?: string };
  source?: { component?: string };
  reportingComponent?: string;
}

export interface EventRow extends Row {
  warning: boolean;
  reason: string;
  message: string;
  count: number;
  at: number;
  kind: string;
  namespace: string;
  name: string;
  uid: string;
  from: string;
  /** The scheduler's record of each node's verdict, as JSON. */
  verdict: string;
  /** The node's record of what it could not place, as JSON. */
  refusal: string;
}

function row(event: EventObject): EventRow {
  const about = event.involvedObject ?? {};
  const last = event.series?.lastObservedTime ?? event.lastTimestamp ?? event.eventTime ?? event.metadata.creationTimestamp;
  const at = Date.parse(last ?? "") || 0;
  const notes = event.metadata.annotations ?? {};
  return {
    key: `${event.metadata.namespace ?? ""}/${event.metadata.name}`,
    // the newest first
    sort: String(9e15 - at).padStart(16, "0"),
    text: [event.reason, about.kind, about.namespace, about.name, event.message, event.type].join(" ").toLowerCase(),
    warning: event.type === "Warning",
    reason: event.reason ?? "",
    message: event.message ?? "",
    count: event.series?.count ?? event.count ?? 1,
    at,
    kind: about.kind ?? "",
    namespace: about.namespace ?? "",
    name: about.name ?? "",
    uid: about.uid ?? "",
    from: event.source?.component || event.reportingComponent || "",
    verdict: notes["davit.dev/verdict"] ?? "",
    refusal: notes["davit.dev/refusal"] ?? "",
  };
}

export const events = new Collection<EventObject, EventRow>({
  base: "/api/v1",
  plural: "events",
  namespaced: true,
  row,
  most: 5000,
});

export interface Shortage {
  resource: string;
  requested: number;
  used: number;
  capacity: number;
}

/** What rules a device out: `cause` and fields that depend on it. */
export type DeviceRefusal = { device: string; cause: string } & Record<string, unknown>;

export interface Refusal {
  devices: number;
  error?: string;
  pools?: { pool: string; reason: string }[];
  requests: { claim: string; request: string; wanted?: number | null; usable: number; together?: string[]; devices: DeviceRefusal[] }[];
}

export interface NodeVerdict {
  node: string;
  plugin: string;
  code: string;
  reasons: string[];
  shortages?: Shortage[];
  devices?: Refusal;
  volumes?: { claim: string; why: string }[];
}

/** What came of one attempt to schedule a pod. */
export interface Verdict {
  at: string;
  attempt: number;
  totalNodes: number;
  reasons: Record<string, number>;
  preFilter?: string;
  postFilter?: string;
  nominated?: string;
  nodes: NodeVerdict[];
  moreNodes: number;
}

/** What a node could not place together. */
export interface Misfit {
  policy: string;
  scope: string;
  container?: string;
  options: {
    nodes: number[];
    possible: boolean;
    resources: {
      name: string;
      requested: number;
      free: number;
      total: number;
      missing: number;
      fixed?: string;
      occupants?: { namespace: string; pod: string; container: string; amount: number }[];
    }[];
  }[];
}

function parsed<T>(texts: string[]): T[] {
  return texts.flatMap((text) => {
    try {
      const record: unknown = JSON.parse(text);
      return typeof record === "object" && record !== null ? [record as T] : [];
    } catch {
      return [];
    }
  });
}

/** The latest record of the scheduler about a pod. */
export function latestVerdict(of: EventRow[]): Verdict | undefined {
  const records = parsed<Verdict>(of.map((e) => e.verdict).filter((text) => text !== ""));
  return records.sort((a, b) => Date.parse(b.at) - Date.parse(a.at))[0];
}

/** The latest record of the node about a pod that it refused; `of` is newest first. */
export function latestMisfit(of: EventRow[]): Misfit | undefined {
  return parsed<Misfit>(of.map((e) => e.refusal).filter((text) => text !== ""))[0];
}

/** In a sentence, what rules a device out. */
export function causeText(refusal: DeviceRefusal): string {
  const field = (name: string) => String(refusal[name] ?? "");
  switch (refusal.cause) {
    case "inUse":
      return "in use";
    case "otherNode":
      return "not reachable from this node";
    case "selector": {
      const saw = Array.isArray(refusal["seen"]) && refusal["seen"].length > 0 ? ` (saw ${refusal["seen"].join(", ")})` : "";
      const where = refusal["class"] ? `class ${field("class")}` : "request";
      const fault = refusal["error"] ? ` fails: ${field("error")}` : " is false";
      return `${where}: ${field("expression")}${fault}${saw}`;
    }
    case "noCapacity":
      return `has no capacity ${field("capacity")}`;
    case "capacity":
      return `capacity ${field("capacity")}: wants ${field("requested")}, ${field("left")} left`;
    case "capacityPolicy":
      return `capacity ${field("capacity")}: ${field("amount")} is not among the amounts it gives away`;
    case "counter":
      return `counter ${field("set")}/${field("counter")} of pool ${field("pool")}: wants ${field("requested")}, ${field("left")} left`;
    case "taint":
      return `taint ${field("key")}${refusal["value"] ? `=${field("value")}` : ""}:${field("effect")} is not tolerated`;
    case "featureOff":
      return `needs the feature ${field("feature")}, which is off`;
    case "noAttribute":
      return `has no attribute ${field("attribute")}`;
    case "constraint":
      return `${field("attribute")} is ${field("value")}, must ${refusal["distinct"] ? "differ from" : "match"} ${field("wanted")}`;
    default:
      return refusal.cause;
  }
}
