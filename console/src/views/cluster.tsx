/** The cluster at a glance. */
import { useEffect, useState } from "preact/hooks";
import { read } from "../api/session";
import { count } from "../model/amounts";
import { claims, slices } from "../model/claims";
import { allDevices, sources, tables } from "../model/devices";
import { events } from "../model/events";
import { nodes } from "../model/nodes";
import { pods, type PodState } from "../model/pods";
import { to } from "../route";
import { Ago, Head, Hindrance, Mark, Meter, Nothing, Panel, type AnyCollection, type Tone } from "../ui/parts";

const MOST = 8;

function Tile({ href, name, value, of, parts, total, of2 }: { href: string; name: string; value: string; of: string; parts: { n: number; tone: Tone }[]; total: number; of2: AnyCollection }) {
  if (of2.state.value === "denied") {
    return (
      <a class="tile" href={href}>
        <span class="name">{name}</span>
        <span class="value denied">not allowed</span>
        <span class="of">You may not read these</span>
      </a>
    );
  }
  return (
    <a class="tile" href={href}>
      <span class="name">{name}</span>
      <span class="value">{value}</span>
      <Meter parts={parts} total={total} label={of} />
      <span class="of">{of}</span>
    </a>
  );
}

function Tiles() {
  nodes.version.value;
  pods.version.value;
  claims.version.value;
  const nodeRows = nodes.rows();
  const ready = nodeRows.filter((n) => n.state !== "NotReady").length;
  const states = new Map<PodState, number>();
  for (const pod of pods.rows()) states.set(pod.state, (states.get(pod.state) ?? 0) + 1);
  const n = (...of: PodState[]) => of.reduce((sum, state) => sum + (states.get(state) ?? 0), 0);
  const all = sources();
  const sum = (field: "total" | "held" | "bad") => all.reduce((total, source) => total + source[field], 0);
  const [total, held, bad] = [sum("total"), sum("held"), sum("bad")];
  const claimRows = claims.rows();
  const inUse = claimRows.filter((c) => c.state === "In use").length;
  const pending = claimRows.filter((c) => c.state === "Pending").length;
  const stuck = n("Refused", "Failed");
  return (
    <div class="tiles">
      <Tile href={to("nodes")} name="Nodes" value={nodes.size.toLocaleString("en")} of={ready === nodes.size ? "all ready" : `${ready} ready, ${nodes.size - ready} not`} of2={nodes}
        parts={[{ n: ready, tone: "ok" }, { n: nodes.size - ready, tone: "bad" }]} total={nodes.size} />
      <Tile href={to("devices")} name="Devices" value={total.toLocaleString("en")} of={[`${held} held`, bad > 0 ? `${bad} unwell` : "", `${Math.max(0, total - held - bad)} free`].filter(Boolean).join(", ")} of2={nodes.state.value === "denied" ? slices : nodes}
        parts={[{ n: held, tone: "held" }, { n: bad, tone: "bad" }]} total={total} />
      <Tile href={to("claims")} name="Claims" value={claims.size.toLocaleString("en")} of={claims.size === 0 ? "none" : `${inUse} in use, ${pending} pending`} of2={claims}
        parts={[{ n: inUse, tone: "held" }, { n: pending, tone: "warn" }]} total={claims.size} />
      <Tile href={to("pods")} name="Pods" value={pods.size.toLocaleString("en")} of={[`${n("Running")} running`, n("Pending", "Waiting") > 0 ? `${n("Pending", "Waiting")} waiting` : "", stuck > 0 ? `${stuck} failed` : ""].filter(Boolean).join(", ")} of2={pods}
        parts={[{ n: n("Running"), tone: "ok" }, { n: n("Pending", "Waiting", "Terminating"), tone: "warn" }, { n: stuck, tone: "bad" }]} total={pods.size} />
    </div>
  );
}

interface Trouble {
  key: string;
  state: string;
  kind: string;
  name: string;
  href: string;
  why: string;
}

function troubles(): Trouble[] {
  nodes.version.value;
  pods.version.value;
  const out: Trouble[] = [];
  for (const node of nodes.rows()) {
    if (node.state === "NotReady") out.push({ key: `n/${node.key}`, state: node.state, kind: "Node", name: node.name, href: to("nodes", node.name), why: node.why });
  }
  for (const pod of pods.rows()) {
    if (pod.state !== "Pending" && pod.state !== "Refused" && pod.state !== "Failed" && (pod.state !== "Waiting" || pod.why === "")) continue;
    out.push({ key: `p/${pod.key}`, state: pod.state, kind: "Pod", name: pod.key, href: to("pods", pod.namespace, pod.name), why: pod.why });
  }
  for (const device of allDevices()) {
    if (device.state === "Free" || device.state === "Held") continue;
    const href = device.node === "" ? to("devices") : to("nodes", device.node);
    out.push({ key: `d/${device.key}`, state: device.state, kind: "Device", name: `${device.node} ${device.id}`.trim(), href, why: [device.source, device.why].filter(Boolean).join(": ") });
  }
  return out;
}

function Troubles() {
  const all = troubles();
  const loading = [nodes, pods].some((c) => c.state.value === "loading" || c.state.value === "idle");
  return (
    <Panel title="Needs a look" aside={all.length > 0 && <span class="muted">{all.length.toLocaleString("en")}</span>} wide>
      {all.length === 0 && <Nothing>{loading ? "Reading…" : "Nothing that you may see needs a look."}</Nothing>}
      <ul class="list">
        {all.slice(0, MOST).map((trouble) => (
          <li key={trouble.key}>
            <a href={trouble.href}>
              <Mark state={trouble.state} />
              <span class="what"><span class="muted">{trouble.kind}</span> {trouble.name}</span>
              <span class="why" title={trouble.why}>{trouble.why}</span>
            </a>
          </li>
        ))}
      </ul>
      {all.length > MOST && <p class="more muted">and {count(all.length - MOST, "more")}</p>}
    </Panel>
  );
}

function Sources() {
  const all = sources();
  const unread = nodes.size - [...tables.value.values()].filter((t) => typeof t !== "string").length;
  return (
    <Panel title="Devices by resource and driver" aside={<a href={to("devices", "sources")}>All</a>}>
      {all.length === 0 && <Nothing>No plugin and no driver has any device{unread > 0 && nodes.state.value === "denied" ? " that you may see" : ""}.</Nothing>}
      <ul class="bars">
        {all.slice(0, MOST).map((source) => (
          <li key={`${source.fromDriver}/${source.name}`}>
            <span class="label"><span class="mono">{source.name}</span> <span class="muted">{source.fromDriver ? "driver" : "plugin"}</span></span>
            <span class="figures">{source.held} of {source.total} held{source.bad > 0 ? `, ${source.bad} unwell` : ""}</span>
            <Meter parts={[{ n: source.held, tone: "held" }, { n: source.bad, tone: "bad" }]} total={source.total} label={`${source.held} of ${source.total} held`} />
          </li>
        ))}
      </ul>
    </Panel>
  );
}

function Warnings() {
  events.version.value;
  const latest = events.rows().filter((e) => e.warning).slice(0, MOST);
  return (
    <Panel title="Latest warnings" aside={<a href={to("activity")}>All events</a>}>
      <Hindrance of={events} what="events" />
      {latest.length === 0 && events.state.value === "live" && <Nothing>No warnings.</Nothing>}
      <ul class="list">
        {latest.map((event) => (
          <li key={event.key}>
            <div class="line">
              <span class="when muted"><Ago at={event.at} /></span>
              <span class="what">{event.reason} <span class="muted">{event.kind} {event.name}</span></span>
              <span class="why" title={event.message}>{event.message}</span>
            </div>
          </li>
        ))}
      </ul>
    </Panel>
  );
}

export function ClusterPage() {
  const [version, setVersion] = useState("");
  useEffect(() => {
    read<{ gitVersion?: string; platform?: string }>("/version").then((v) => setVersion(v.gitVersion ?? ""), () => setVersion(""));
  }, []);
  return (
    <>
      <Head title="Cluster"><span class="muted mono">{location.host}{version && ` · ${version}`}</span></Head>
      <div class="scroll">
        <Tiles />
        <div class="panels">
          <Troubles />
          <Sources />
          <Warnings />
        </div>
      </div>
    </>
  );
}
