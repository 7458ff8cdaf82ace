/** Dynamic resource allocation: slices, classes and claims. */
import { Collection, natural, type Row, type Stored } from "../api/collection";

type Value = string | number | boolean;
interface Attribute {
  string?: string;
  int?: number;
  bool?: boolean;
  version?: string;
  strings?: string[];
  ints?: number[];
}

interface DeviceObject {
  name: string;
  attributes?: Record<string, Attribute>;
  capacity?: Record<string, { value: string }>;
  taints?: { key: string; value?: string; effect: string }[];
  nodeName?: string;
}

interface SliceObject extends Stored {
  spec: {
    driver: string;
    nodeName?: string;
    allNodes?: boolean;
    pool: { name: string; generation: number; resourceSliceCount: number };
    devices?: DeviceObject[];
  };
}

export interface SliceDevice {
  name: string;
  attributes: [string, Value][];
  capacity: [string, string][];
  taints: string[];
  /** The NUMA node, where an attribute names it. */
  numa: number[];
}

export interface SliceRow extends Row {
  name: string;
  driver: string;
  pool: string;
  generation: number;
  /** Its node; empty for what several nodes reach. */
  node: string;
  devices: SliceDevice[];
}

function value(attribute: Attribute): Value {
  const { string, int, bool, version, strings, ints } = attribute;
  return string ?? int ?? bool ?? version ?? (strings ?? ints ?? []).join(", ");
}

function device(object: DeviceObject): SliceDevice {
  const attributes = Object.entries(object.attributes ?? {}).map(([name, a]): [string, Value] => [name, value(a)]);
  const numa = attributes.filter(([name]) => /(^|\/)numa(Node)?$/i.test(name)).flatMap(([, v]) => String(v).split(",").map(Number));
  return {
    name: object.name,
    attributes,
    capacity: Object.entries(object.capacity ?? {}).map(([name, c]): [string, string] => [name, c.value]),
    taints: (object.taints ?? []).map((t) => `${t.key}${t.value ? `=${t.value}` : ""}:${t.effect}`),
    numa: numa.filter((n) => Number.isInteger(n) && n >= 0).slice(0, 8),
  };
}

export const slices = new Collection<SliceObject, SliceRow>({
  base: "/apis/resource.k8s.io/v1",
  plural: "resourceslices",
  namespaced: false,
  row: ({ metadata, spec }) => ({
    key: metadata.name,
    sort: natural(`${spec.driver}/${spec.pool.name}/${metadata.name}`),
    text: `${spec.driver} ${spec.pool.name} ${spec.nodeName ?? ""}`.toLowerCase(),
    name: metadata.name,
    driver: spec.driver,
    pool: spec.pool.name,
    generation: spec.pool.generation,
    node: spec.nodeName ?? "",
    devices: (spec.devices ?? []).map(device),
  }),
  tell: (before, now) => {
    const slice = (now ?? before)!;
    const change = (now?.devices.length ?? 0) - (before?.devices.length ?? 0);
    const tainted = (row: SliceRow | undefined) => row?.devices.filter((d) => d.taints.length > 0).length ?? 0;
    const taints = tainted(now) - tainted(before);
    const parts = [
      change > 0 ? `${change} devices more` : change < 0 ? `${-change} devices less` : "",
      taints > 0 ? `${taints} tainted` : taints < 0 ? `${-taints} no longer tainted` : "",
    ].filter((part) => part !== "");
    return parts.length > 0 ? `${slice.driver}, pool ${slice.pool}: ${parts.join(", ")}` : "";
  },
});

interface ClassObject extends Stored {
  spec?: { selectors?: { cel?: { expression: string } }[]; extendedResourceName?: string };
}

export interface ClassRow extends Row {
  name: string;
  selectors: string[];
  extended: string;
}

export const classes = new Collection<ClassObject, ClassRow>({
  base: "/apis/resource.k8s.io/v1",
  plural: "deviceclasses",
  namespaced: false,
  row: ({ metadata, spec }) => ({
    key: metadata.name,
    sort: natural(metadata.name),
    text: metadata.name.toLowerCase(),
    name: metadata.name,
    selectors: (spec?.selectors ?? []).map((s) => s.cel?.expression ?? ""),
    extended: spec?.extendedResourceName ?? "",
  }),
});

interface RequestObject {
  deviceClassName?: string;
  allocationMode?: string;
  count?: number;
  selectors?: { cel?: { expression: string } }[];
  adminAccess?: boolean;
}

interface ClaimObject extends Stored {
  spec: {
    devices?: {
      requests?: ({ name: string; exactly?: RequestObject; firstAvailable?: ({ name: string } & RequestObject)[] } & RequestObject)[];
      constraints?: { matchAttribute?: string; distinctAttribute?: string; requests?: string[] }[];
    };
  };
  status?: {
    allocation?: { devices?: { results?: { request: string; driver: string; pool: string; device: string }[] } };
    reservedFor?: { resource: string; name: string; uid: string }[];
    devices?: { driver: string; pool: string; device: string; conditions?: { type: string; status: string; message?: string }[] }[];
  };
}

export interface ClaimRequest {
  name: string;
  /** One, or several alternatives in order. */
  choices: { name: string; className: string; want: string; selectors: string[] }[];
}

export interface ClaimDevice {
  request: string;
  driver: string;
  pool: string;
  device: string;
  conditions: string[];
}

export interface ClaimRow extends Row {
  name: string;
  namespace: string;
  uid: string;
  state: "Allocated" | "In use" | "Pending";
  requests: ClaimRequest[];
  constraints: string[];
  devices: ClaimDevice[];
  /** Names of the pods that it is reserved for. */
  pods: string[];
  created: number;
}

function choice(name: string, of: RequestObject): ClaimRequest["choices"][number] {
  return {
    name,
    className: of.deviceClassName ?? "",
    want: of.allocationMode === "All" ? "all" : String(of.count ?? 1),
    selectors: (of.selectors ?? []).map((s) => s.cel?.expression ?? ""),
  };
}

function claim({ metadata, spec, status }: ClaimObject): ClaimRow {
  const { name, namespace = "" } = metadata;
  const requests = (spec.devices?.requests ?? []).map((r) => ({
    name: r.name,
    choices: r.firstAvailable ? r.firstAvailable.map((sub) => choice(sub.name, sub)) : [choice(r.name, r.exactly ?? r)],
  }));
  const results = status?.allocation?.devices?.results ?? [];
  const told = new Map((status?.devices ?? []).map((d) => [`${d.driver}/${d.pool}/${d.device}`, d.conditions ?? []]));
  const devices = results.map((r) => ({
    ...r,
    conditions: (told.get(`${r.driver}/${r.pool}/${r.device}`) ?? []).map((c) => `${c.type}: ${c.status}${c.message ? `, ${c.message}` : ""}`),
  }));
  const pods = (status?.reservedFor ?? []).filter((r) => r.resource === "pods").map((r) => r.name);
  const state = !status?.allocation ? "Pending" : pods.length > 0 ? "In use" : "Allocated";
  const names = requests.flatMap((r) => r.choices.map((c) => c.className));
  return {
    key: `${namespace}/${name}`,
    sort: natural(`${namespace}/${name}`),
    text: [namespace, name, state, ...names, ...pods, ...devices.flatMap((d) => [d.driver, d.pool, d.device])].join(" ").toLowerCase(),
    name,
    namespace,
    uid: metadata.uid,
    state,
    requests,
    constraints: (spec.devices?.constraints ?? []).map((c) => (c.matchAttribute ? `same ${c.matchAttribute}` : `distinct ${c.distinctAttribute ?? ""}`)),
    devices,
    pods,
    created: Date.parse(metadata.creationTimestamp ?? "") || 0,
  };
}

export const claims = new Collection<ClaimObject, ClaimRow>({
  base: "/apis/resource.k8s.io/v1",
  plural: "resourceclaims",
  namespaced: true,
  row: claim,
  tell: (before, now) => {
    if (!before) return now ? `new, ${now.state}` : "";
    if (!now) return "gone";
    if (before.state === now.state) return "";
    const what = now.devices.map((d) => `${d.pool}/${d.device}`).join(", ");
    return `${before.state} → ${now.state}${what && before.state === "Pending" ? `: ${what}` : ""}`;
  },
});
