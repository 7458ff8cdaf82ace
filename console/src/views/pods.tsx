/** All pods. */
import { useMemo, useState } from "preact/hooks";
import { pods, type PodRow, type PodState } from "../model/pods";
import { to } from "../route";
import { filtered, Grid, type Column } from "../ui/grid";
import { Ago, Choice, Filter, Head, Hindrance, Mark, toneOf } from "../ui/parts";

const COLUMNS: Column<PodRow>[] = [
  { id: "name", head: "Name", width: "minmax(150px, 2fr)", cell: (p) => p.name, by: (p) => p.name },
  { id: "namespace", head: "Namespace", width: "minmax(90px, 1fr)", cell: (p) => p.namespace, by: (p) => p.sort },
  { id: "state", head: "State", width: "104px", cell: (p) => <Mark state={p.state} />, by: (p) => p.state },
  { id: "ready", head: "Ready", width: "62px", number: true, cell: (p) => p.ready },
  { id: "restarts", head: "Restarts", width: "76px", number: true, cell: (p) => p.restarts || "", by: (p) => -p.restarts },
  { id: "node", head: "Node", width: "minmax(90px, 1fr)", cell: (p) => p.node, by: (p) => p.node },
  { id: "wants", head: "Asks for", width: "minmax(90px, 1fr)", cell: (p) => wants(p), by: wants },
  { id: "why", head: "Why", width: "minmax(140px, 3fr)", cell: (p) => <span class="muted" title={p.why}>{p.why}</span> },
  { id: "age", head: "Age", width: "66px", number: true, cell: (p) => <Ago at={p.created} />, by: (p) => -p.created },
];

function wants(pod: PodRow): string {
  const devices = pod.wants.map(([name, n]) => `${n} ${name.split("/")[1] ?? name}`);
  const claims = pod.claims.length > 0 ? [`${pod.claims.length} claim${pod.claims.length === 1 ? "" : "s"}`] : [];
  return [...devices, ...claims].join(", ");
}

export function PodGrid({ label, rows }: { label: string; rows: PodRow[] }) {
  return <Grid label={label} rows={rows} columns={COLUMNS} href={(p) => to("pods", p.namespace, p.name)} nothing={pods.state.value === "loading" ? "Reading…" : "No pods."} />;
}

const GROUPS: { id: string; text: string; of: PodState[] }[] = [
  { id: "Pending", text: "Pending", of: ["Pending"] },
  { id: "Waiting", text: "Waiting", of: ["Waiting", "Terminating"] },
  { id: "Refused", text: "Refused or failed", of: ["Refused", "Failed"] },
  { id: "Running", text: "Running", of: ["Running"] },
  { id: "Ended", text: "Ended", of: ["Ended"] },
];

export function PodList() {
  const [filter, setFilter] = useState("");
  const [group, setGroup] = useState("all");
  const version = pods.version.value;
  const rows = pods.rows();
  const counts = useMemo(() => {
    const out = new Map<PodState, number>();
    for (const pod of rows) out.set(pod.state, (out.get(pod.state) ?? 0) + 1);
    return out;
  }, [version]);
  const of = GROUPS.find((g) => g.id === group)?.of;
  const shown = useMemo(() => filtered(of ? rows.filter((p) => of.includes(p.state)) : rows, filter), [version, rows, group, filter]);
  const options = GROUPS.map((g) => ({ id: g.id, text: g.text, n: g.of.reduce((sum, s) => sum + (counts.get(s) ?? 0), 0), tone: toneOf(g.id) }));
  return (
    <>
      <Head title="Pods">
        <Choice label="Which pods" value={group} onChoose={setGroup} options={[{ id: "all", text: "All", n: rows.length }, ...options.filter((o) => o.n > 0 || o.id === group)]} />
        <Filter what="pods" value={filter} onInput={setFilter} />
      </Head>
      <Hindrance of={pods} what="pods" />
      {pods.state.value !== "denied" && <PodGrid label="Pods" rows={shown} />}
    </>
  );
}
