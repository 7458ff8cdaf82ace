/** One node: the picture of its NUMA nodes, its conditions, its pods, its events. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { bytes, count } from "../model/amounts";
import { allDevices, lookAt, tables, type DeviceRow } from "../model/devices";
import { nodes, topologies, type NodeRow } from "../model/nodes";
import { holdings, picture, type Picture, type Place } from "../model/places";
import { pods } from "../model/pods";
import { to } from "../route";
import { Ago, Facts, Head, Hindrance, Mark, Meter, Nothing, Panel, Tabs } from "../ui/parts";
import { EventLines } from "./events";
import { ObjectText } from "./object";
import { PodGrid } from "./pods";

/** So many CPUs or devices are drawn with their names; more are drawn small. */
const NAMED = 40;

interface Lit {
  holder: string;
  light: (holder: string) => void;
}

function hue(picture: Picture, holder: string): string {
  const mark = picture.holders.get(holder);
  return mark ? ` h${mark.hue}` : "";
}

function dim(lit: Lit, holder: string): string {
  return lit.holder !== "" && lit.holder !== holder ? " dim" : "";
}

function cpuWords(place: Place): string {
  const by = new Map<string, number[]>();
  for (const cpu of place.cpus) if (cpu.holder !== "") by.set(cpu.holder, [...(by.get(cpu.holder) ?? []), cpu.number]);
  const held = [...by].map(([holder, numbers]) => `${numbers.join(", ")} held by ${holder}`);
  const shared = place.cpus.length - [...by.values()].reduce((sum, n) => sum + n.length, 0);
  return `${count(place.cpus.length, "CPU")}: ${[...held, `${shared} shared`].join("; ")}`;
}

function Cpus({ place, drawn, lit }: { place: Place; drawn: Picture; lit: Lit }) {
  if (place.cpuCount === 0) return null;
  if (place.cpus.length === 0) return <p class="row-of"><span class="kind">CPUs</span><span>{count(place.cpuCount, "CPU")}</span></p>;
  const held = place.cpus.filter((c) => c.holder !== "").length;
  return (
    <div class="row-of">
      <span class="kind">CPUs</span>
      <div class={`cpus${place.cpus.length > NAMED ? " small" : ""}`} role="img" aria-label={cpuWords(place)}>
        {place.cpus.map((cpu) => (
          <span
            key={cpu.number}
            class={`cpu${cpu.holder ? hue(drawn, cpu.holder) : ""}${dim(lit, cpu.holder)}`}
            title={`CPU ${cpu.number}: ${cpu.holder || "shared"}`}
            onMouseEnter={() => cpu.holder && lit.light(cpu.holder)}
            onMouseLeave={() => lit.light("")}
          >{cpu.number}</span>
        ))}
      </div>
      <span class="figure">{held > 0 ? `${held} of ${place.cpus.length} held` : `${place.cpus.length} shared`}</span>
    </div>
  );
}

function Memory({ place, drawn, lit }: { place: Place; drawn: Picture; lit: Lit }) {
  if (place.memory === 0) return null;
  const held = place.shares.reduce((sum, share) => sum + share.size, 0);
  const words = place.shares.map((s) => `${bytes(s.size)} of ${s.kind} held by ${s.holder}`);
  return (
    <div class="row-of">
      <span class="kind">Memory</span>
      <span class="memory" role="img" aria-label={`${bytes(place.memory)}: ${words.join("; ") || "none held"}`}>
        {place.shares.map((share, at) => (
          <span
            key={at}
            class={`share${hue(drawn, share.holder)}${dim(lit, share.holder)}`}
            style={{ width: `${Math.max(0.6, (share.size / place.memory) * 100)}%` }}
            title={`${share.holder}: ${bytes(share.size)} of ${share.kind}`}
            onMouseEnter={() => lit.light(share.holder)}
            onMouseLeave={() => lit.light("")}
          />
        ))}
      </span>
      <span class="figure">{held > 0 ? `${bytes(held)} of ${bytes(place.memory)} held` : bytes(place.memory)}</span>
    </div>
  );
}

function Chip({ device, drawn, lit, small }: { device: DeviceRow; drawn: Picture; lit: Lit; small: boolean }) {
  const trouble = device.state !== "Held" && device.state !== "Free";
  const words = `${device.id}: ${device.state}${device.why ? `, ${device.why}` : ""}${device.holder ? `, held by ${device.holder}` : ""}`;
  return (
    <li
      class={`chip${device.holder ? hue(drawn, device.holder) : ""}${trouble ? " trouble" : ""}${dim(lit, device.holder)}${small ? " small" : ""}`}
      title={words}
      onMouseEnter={() => device.holder && lit.light(device.holder)}
      onMouseLeave={() => lit.light("")}
    >
      {small ? <span class="hidden">{words}</span> : (
        <>
          <span class="id">{device.id}</span>
          <span class="by">{trouble ? <span class="bad-text">{device.state}{device.holder && " · "}</span> : ""}{device.holder || (trouble ? "" : "free")}</span>
        </>
      )}
    </li>
  );
}

function Devices({ place, drawn, lit }: { place: Place; drawn: Picture; lit: Lit }) {
  const bySource = new Map<string, DeviceRow[]>();
  for (const device of place.devices) bySource.set(device.source, [...(bySource.get(device.source) ?? []), device]);
  return (
    <>
      {[...bySource].map(([source, devices]) => (
        <div class="row-of" key={source}>
          <span class="kind" title={source}><span class="mono">{source}</span></span>
          <ul class="chips" aria-label={`${source}, ${place.id >= 0 ? `NUMA node ${place.id}` : "elsewhere"}`}>
            {devices.map((device) => <Chip key={device.key} device={device} drawn={drawn} lit={lit} small={devices.length > NAMED} />)}
          </ul>
          <span class="figure">{devices.filter((d) => d.holder !== "").length} of {devices.length} held</span>
        </div>
      ))}
    </>
  );
}

function placeName(place: Place): string {
  return place.id === -1 ? "No place named" : place.id === -2 ? "On several NUMA nodes" : `NUMA node ${place.id}`;
}

function Numa({ node }: { node: NodeRow }) {
  const [holder, light] = useState("");
  const lit: Lit = { holder, light };
  const told = tables.value.get(node.name);
  const table = typeof told === "string" ? undefined : told;
  topologies.version.value;
  const all = allDevices();
  const devices = useMemo(() => all.filter((d) => d.node === node.name), [all, node.name]);
  const topology = topologies.get(node.name);
  const drawn = useMemo(() => picture(node, table, topology, devices), [node, table, topology, devices]);
  const holders = [...drawn.holders.values()];
  return (
    <div class="numa">
      <div class="places">
        {typeof told === "string" && <div class="hindrance" role="status"><strong>The node's device table cannot be read.</strong><p>{told}</p></div>}
        {drawn.places.map((place) => (
          <section key={place.id} class="place" aria-label={placeName(place)}>
            <h2>{placeName(place)}</h2>
            <Cpus place={place} drawn={drawn} lit={lit} />
            <Memory place={place} drawn={drawn} lit={lit} />
            <Devices place={place} drawn={drawn} lit={lit} />
            {place.devices.length === 0 && <p class="row-of muted"><span class="kind">Devices</span><span>none</span></p>}
          </section>
        ))}
      </div>
      <section class="holders" aria-label="Who holds what">
        <h2>Who holds what</h2>
        {holders.length === 0 && <Nothing>Nobody holds CPUs, memory or devices here.</Nothing>}
        <ul>
          {holders.map((mark) => {
            const [namespace = "", name = ""] = mark.name.split("/");
            const isPod = !mark.name.startsWith("claim ");
            const content = <><span class={`key h${mark.hue}`} aria-hidden="true" /><span class="name">{mark.name}</span><span class="muted">{holdings(mark)}</span></>;
            return (
              <li key={mark.name} class={dim(lit, mark.name)} onMouseEnter={() => light(mark.name)} onMouseLeave={() => light("")}>
                {isPod
                  ? <a href={to("pods", namespace, name)} onFocus={() => light(mark.name)} onBlur={() => light("")}>{content}</a>
                  : <span class="held-by">{content}</span>}
              </li>
            );
          })}
        </ul>
        <p class="muted small">CPUs and memory are held by pods that have them for themselves; all others share the rest.</p>
      </section>
    </div>
  );
}

function Overview({ node }: { node: NodeRow }) {
  return (
    <>
      <Numa node={node} />
      <div class="panels">
        <Panel title="Conditions">
          <table class="plain">
            <thead><tr><th scope="col">Condition</th><th scope="col">State</th><th scope="col">Why</th></tr></thead>
            <tbody>
              {node.conditions.map((c) => {
                const good = (c.type === "Ready") === (c.status === "True");
                return <tr key={c.type}><td>{c.type}</td><td><Mark state={c.status} tone={good ? "ok" : "bad"} /></td><td class="muted">{c.message ?? c.reason}</td></tr>;
              })}
            </tbody>
          </table>
        </Panel>
        <Panel title="What it is">
          <Facts facts={[...node.facts, ["CPUs", String(node.cpu)], ["Memory", bytes(node.memory)], ...(node.taints.length ? [["Taints", node.taints.join(", ")] as [string, string]] : [])]} />
        </Panel>
        <Panel title="Extended resources">
          {node.extended.size === 0 && <Nothing>No plugin has told of any.</Nothing>}
          <ul class="bars">
            {[...node.extended].map(([name, n]) => (
              <li key={name}>
                <span class="label mono">{name}</span>
                <span class="figures">{n.allocatable} of {n.capacity} can be given out</span>
                <Meter parts={[{ n: n.allocatable, tone: "ok" }, { n: n.capacity - n.allocatable, tone: "bad" }]} total={n.capacity} label={`${n.allocatable} of ${n.capacity}`} />
              </li>
            ))}
          </ul>
        </Panel>
      </div>
    </>
  );
}

export function NodePage({ name, tab }: { name: string; tab: string }) {
  nodes.version.value;
  const node = nodes.get(name);
  useEffect(() => lookAt(name), [name]);
  pods.version.value;
  const here = useMemo(() => pods.rows().filter((pod) => pod.node === name), [pods.version.value, name]);
  const current = tab || "overview";
  const about = (event: { kind: string; name: string }) => event.kind === "Node" && event.name === name;
  return (
    <>
      <Head title={name} above={<a href={to("nodes")}>Nodes</a>}>
        {node && <Mark state={node.state} />}
        {node && <span class="muted">for <Ago at={node.created} /></span>}
      </Head>
      <Tabs label="Node" current={current} tabs={[
        { id: "overview", text: "Picture", href: to("nodes", name) },
        { id: "pods", text: `Pods ${here.length}`, href: to("nodes", name, "pods") },
        { id: "events", text: "Events", href: to("nodes", name, "events") },
        { id: "object", text: "Object", href: to("nodes", name, "object") },
      ]} />
      <Hindrance of={nodes} what="nodes" />
      {!node && nodes.state.value === "live" && <Nothing>There is no node {name}.</Nothing>}
      {node && current === "pods" && <PodGrid label={`Pods of ${name}`} rows={here} />}
      {current === "events" && <div class="scroll"><EventLines about={about} /></div>}
      {current === "object" && <ObjectText path={`/api/v1/nodes/${encodeURIComponent(name)}`} />}
      {node && current === "overview" && (
        <div class="scroll">
          {node.why !== "" && <p class="note bad-text">{node.why}</p>}
          <Overview node={node} />
        </div>
      )}
    </>
  );
}
