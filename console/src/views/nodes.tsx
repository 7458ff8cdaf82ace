/** All nodes. */
import { useMemo, useState } from "preact/hooks";
import { bytes } from "../model/amounts";
import { nodes, type NodeRow } from "../model/nodes";
import { pods } from "../model/pods";
import { to } from "../route";
import { filtered, Grid, type Column } from "../ui/grid";
import { Ago, Choice, Filter, Head, Hindrance, Mark } from "../ui/parts";

let podsByNode: { version: number; counts: Map<string, number> } = { version: -1, counts: new Map() };

function podsOn(node: string): number {
  if (podsByNode.version !== pods.version.value) {
    const counts = new Map<string, number>();
    for (const pod of pods.rows()) if (pod.node !== "") counts.set(pod.node, (counts.get(pod.node) ?? 0) + 1);
    podsByNode = { version: pods.version.value, counts };
  }
  return podsByNode.counts.get(node) ?? 0;
}

function devicesOf(node: NodeRow): string {
  return [...node.extended].filter(([, n]) => n.capacity > 0).map(([name, n]) => `${n.allocatable} ${name.split("/")[1] ?? name}`).join(", ");
}

const COLUMNS: Column<NodeRow>[] = [
  { id: "name", head: "Name", width: "minmax(160px, 2fr)", cell: (n) => n.name, by: (n) => n.sort },
  { id: "state", head: "State", width: "110px", cell: (n) => <Mark state={n.state} />, by: (n) => n.state },
  { id: "cpu", head: "CPUs", width: "70px", number: true, cell: (n) => n.cpu.toLocaleString("en", { maximumFractionDigits: 1 }), by: (n) => n.cpu },
  { id: "memory", head: "Memory", width: "96px", number: true, cell: (n) => bytes(n.memory), by: (n) => n.memory },
  { id: "pods", head: "Pods", width: "64px", number: true, cell: (n) => podsOn(n.name), by: (n) => podsOn(n.name) },
  { id: "devices", head: "Devices of plugins", width: "minmax(140px, 2fr)", cell: (n) => <span title={devicesOf(n)}>{devicesOf(n)}</span>, by: devicesOf },
  { id: "why", head: "Taints and troubles", width: "minmax(140px, 3fr)", cell: (n) => <span class="muted" title={n.why || n.taints.join(", ")}>{n.why || n.taints.join(", ")}</span> },
  { id: "age", head: "Age", width: "72px", number: true, cell: (n) => <Ago at={n.created} />, by: (n) => -n.created },
];

export function NodeList() {
  const [filter, setFilter] = useState("");
  const [state, setState] = useState("all");
  const version = nodes.version.value;
  const rows = nodes.rows();
  const bad = rows.filter((n) => n.state !== "Ready").length;
  const shown = useMemo(() => filtered(state === "all" ? rows : rows.filter((n) => n.state !== "Ready"), filter), [version, rows, filter, state]);
  return (
    <>
      <Head title="Nodes">
        <Choice label="Which nodes" value={state} onChoose={setState} options={[{ id: "all", text: "All", n: rows.length }, { id: "bad", text: "Not ready or cordoned", n: bad, tone: "bad" }]} />
        <Filter what="nodes" value={filter} onInput={setFilter} />
      </Head>
      <Hindrance of={nodes} what="nodes" />
      {nodes.state.value !== "denied" && (
        <Grid label="Nodes" rows={shown} columns={COLUMNS} href={(n) => to("nodes", n.name)} nothing={nodes.state.value === "loading" ? "Reading…" : filter ? "No node fits the filter." : "There are no nodes."} />
      )}
    </>
  );
}
