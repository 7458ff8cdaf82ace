/** All devices, one by one; what plugins and drivers there are; classes. */
import { useMemo, useState } from "preact/hooks";
import { count } from "../model/amounts";
import { classes, claims, slices } from "../model/claims";
import { allDevices, FOLLOWED, reading, readTables, sources, tables, type DeviceRow, type DeviceState, type Source } from "../model/devices";
import { nodes } from "../model/nodes";
import { to } from "../route";
import { filtered, Grid, type Column } from "../ui/grid";
import { Choice, Filter, Head, Hindrance, Mark, Meter, Nothing, Tabs, toneOf } from "../ui/parts";

function details(row: DeviceRow): string {
  if (row.why !== "") return row.why;
  const of = row.details;
  return of ? [...of.capacity.map(([k, v]) => `${k} ${v}`), ...of.attributes.map(([k, v]) => `${k}=${v}`)].join("  ") : "";
}

function Holder({ row }: { row: DeviceRow }) {
  if (row.holderKey === "") return <span class="muted">{row.holder}</span>;
  const [namespace = "", name = ""] = row.holderKey.split("/");
  return <a href={to("pods", namespace, name)} tabIndex={-1}>{row.holder}</a>;
}

const COLUMNS: Column<DeviceRow>[] = [
  { id: "id", head: "Device", width: "minmax(130px, 1.5fr)", cell: (d) => d.id, by: (d) => d.id },
  { id: "node", head: "Node", width: "minmax(100px, 1fr)", cell: (d) => d.node || <span class="muted">several</span>, by: (d) => d.sort },
  { id: "source", head: "Resource or driver", width: "minmax(150px, 1.5fr)", cell: (d) => <span class="mono" title={d.source}>{d.source}</span>, by: (d) => d.source },
  { id: "state", head: "State", width: "104px", cell: (d) => <Mark state={d.state} />, by: (d) => d.state },
  { id: "numa", head: "NUMA", width: "62px", number: true, cell: (d) => d.numa.join(", ") },
  { id: "holder", head: "Held by", width: "minmax(120px, 1.5fr)", cell: (d) => <Holder row={d} />, by: (d) => d.holder },
  { id: "claim", head: "Claim", width: "minmax(80px, 1fr)", cell: (d) => d.claim, by: (d) => d.claim },
  { id: "details", head: "Says of itself", width: "minmax(120px, 2fr)", cell: (d) => <span class="muted" title={details(d)}>{details(d)}</span> },
];

const STATES: DeviceState[] = ["Free", "Held", "Unhealthy", "Unknown", "Tainted"];

/** What is said where the tables of many nodes are not read by themselves, and where some cannot be. */
function TableNote() {
  nodes.version.value;
  const told = [...tables.value.values()];
  const read = told.filter((t) => typeof t !== "string").length;
  const failed = told.length - read;
  const why = told.find((t) => typeof t === "string");
  const all = nodes.rows().map((n) => n.name);
  if (nodes.state.value === "denied") return <p class="note">Devices of plugins are told by the nodes, which you may not list. {nodes.why.value}</p>;
  if (reading.value > 0) return <p class="note" role="status">Reading the tables of {count(reading.value, "more node")}…</p>;
  if (all.length > FOLLOWED) {
    return (
      <p class="note">
        {read === 0 ? `Devices of drivers are below. Those of plugins are told by each of ${count(all.length, "node")} itself.` : `The tables of ${count(read, "node")} have been read${failed > 0 ? `, ${failed} could not be` : ""}.`}{" "}
        <button type="button" onClick={() => void readTables(all)}>{read === 0 ? "Ask all nodes" : "Ask again"}</button>
      </p>
    );
  }
  if (failed > 0 && typeof why === "string") return <p class="note">{count(failed, "device table")} of nodes cannot be read: {why}</p>;
  return null;
}

function DeviceList() {
  const [filter, setFilter] = useState("");
  const [state, setState] = useState("all");
  const rows = allDevices();
  const counts = useMemo(() => {
    const out = new Map<string, number>();
    for (const row of rows) out.set(row.state, (out.get(row.state) ?? 0) + 1);
    return out;
  }, [rows]);
  const shown = useMemo(() => filtered(state === "all" ? rows : rows.filter((d) => d.state === state), filter), [rows, state, filter]);
  const options = STATES.map((s) => ({ id: s as string, text: s as string, n: counts.get(s) ?? 0, tone: toneOf(s) })).filter((o) => o.n > 0 || o.id === state);
  return (
    <>
      <div class="strip">
        <Choice label="Which devices" value={state} onChoose={setState} options={[{ id: "all", text: "All", n: rows.length }, ...options]} />
        <span class="space" />
        <Filter what="devices" value={filter} onInput={setFilter} />
      </div>
      <TableNote />
      <Hindrance of={slices} what="resource slices" />
      <Hindrance of={claims} what="resource claims" />
      <Grid label="Devices" rows={shown} columns={COLUMNS} href={(d) => (d.node === "" ? to("devices", "sources") : to("nodes", d.node))}
        nothing={filter || state !== "all" ? "No device fits." : "There are no devices that you may see."} />
    </>
  );
}

interface SourceRow extends Source {
  key: string;
  sort: string;
  text: string;
}

const SOURCE_COLUMNS: Column<SourceRow>[] = [
  { id: "name", head: "Name", width: "minmax(200px, 2fr)", cell: (s) => <span class="mono">{s.name}</span>, by: (s) => s.name },
  { id: "kind", head: "By", width: "90px", cell: (s) => (s.fromDriver ? "driver" : "plugin"), by: (s) => String(s.fromDriver) },
  { id: "nodes", head: "Nodes", width: "80px", number: true, cell: (s) => s.nodes.toLocaleString("en"), by: (s) => -s.nodes },
  { id: "total", head: "Devices", width: "90px", number: true, cell: (s) => s.total.toLocaleString("en"), by: (s) => -s.total },
  { id: "held", head: "Held", width: "80px", number: true, cell: (s) => s.held.toLocaleString("en"), by: (s) => -s.held },
  { id: "bad", head: "Unwell", width: "80px", number: true, cell: (s) => s.bad || "", by: (s) => -s.bad },
  { id: "bar", head: "Use", width: "minmax(160px, 2fr)", cell: (s) => <Meter parts={[{ n: s.held, tone: "held" }, { n: s.bad, tone: "bad" }]} total={s.total} label={`${s.held} of ${s.total} held, ${s.bad} unwell`} /> },
];

function SourceList() {
  const all = sources();
  const rows = useMemo(() => all.map((s) => ({ ...s, key: `${s.fromDriver}/${s.name}`, sort: s.name, text: s.name.toLowerCase() })), [all]);
  return <Grid label="Plugins and drivers" rows={rows} columns={SOURCE_COLUMNS} nothing="No plugin and no driver has any device." />;
}

function SliceList() {
  slices.version.value;
  return (
    <>
      <Hindrance of={slices} what="resource slices" />
      <Grid label="Resource slices" rows={slices.rows()} nothing="No driver has published a slice." columns={[
        { id: "driver", head: "Driver", width: "minmax(160px, 2fr)", cell: (s) => <span class="mono">{s.driver}</span>, by: (s) => s.driver },
        { id: "pool", head: "Pool", width: "minmax(120px, 1fr)", cell: (s) => s.pool, by: (s) => s.pool },
        { id: "generation", head: "Generation", width: "100px", number: true, cell: (s) => s.generation },
        { id: "node", head: "Node", width: "minmax(120px, 1fr)", cell: (s) => s.node || <span class="muted">several</span>, by: (s) => s.node },
        { id: "devices", head: "Devices", width: "90px", number: true, cell: (s) => s.devices.length, by: (s) => -s.devices.length },
        { id: "name", head: "Name", width: "minmax(160px, 2fr)", cell: (s) => <span class="muted">{s.name}</span> },
      ]} />
    </>
  );
}

function ClassList() {
  classes.version.value;
  const rows = classes.rows();
  return (
    <div class="scroll">
      <Hindrance of={classes} what="device classes" />
      {rows.length === 0 && classes.state.value === "live" && <Nothing>There are no device classes.</Nothing>}
      <ul class="cards">
        {rows.map((c) => (
          <li key={c.key} class="panel">
            <header><h2>{c.name}</h2>{c.extended && <span class="muted mono">{c.extended}</span>}</header>
            {c.selectors.map((s, at) => <code key={at} class="block">{s}</code>)}
            {c.selectors.length === 0 && <Nothing>It takes every device.</Nothing>}
          </li>
        ))}
      </ul>
    </div>
  );
}

export function DevicePages({ tab }: { tab: string }) {
  const current = tab || "devices";
  return (
    <>
      <Head title="Devices" />
      <Tabs label="Devices" current={current} tabs={[
        { id: "devices", text: "One by one", href: to("devices") },
        { id: "sources", text: "Plugins and drivers", href: to("devices", "sources") },
        { id: "slices", text: "Slices", href: to("devices", "slices") },
        { id: "classes", text: "Classes", href: to("devices", "classes") },
      ]} />
      {current === "devices" && <DeviceList />}
      {current === "sources" && <SourceList />}
      {current === "slices" && <SliceList />}
      {current === "classes" && <ClassList />}
    </>
  );
}
