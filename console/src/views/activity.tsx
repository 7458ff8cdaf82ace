/** What happens: events, and the changes that the watches bring. */
import { useMemo, useState } from "preact/hooks";
import { seen } from "../api/collection";
import { events, type EventRow } from "../model/events";
import { to } from "../route";
import { filtered, Grid, type Column } from "../ui/grid";
import { Ago, Choice, Filter, Head, Hindrance, Mark, Nothing, Tabs } from "../ui/parts";

const COLUMNS: Column<EventRow>[] = [
  { id: "at", head: "Ago", width: "72px", cell: (e) => <Ago at={e.at} />, by: (e) => -e.at },
  { id: "reason", head: "Reason", width: "minmax(120px, 1fr)", cell: (e) => <Mark state={e.reason} tone={e.warning ? "warn" : "quiet"} />, by: (e) => e.reason },
  { id: "about", head: "About", width: "minmax(140px, 1.5fr)", cell: (e) => <span><span class="muted">{e.kind}</span> {e.name}</span>, by: (e) => `${e.kind}/${e.name}` },
  { id: "namespace", head: "Namespace", width: "minmax(80px, 0.8fr)", cell: (e) => e.namespace, by: (e) => e.namespace },
  { id: "message", head: "Message", width: "minmax(200px, 5fr)", cell: (e) => <span title={e.message}>{e.message}</span> },
  { id: "count", head: "Times", width: "60px", number: true, cell: (e) => (e.count > 1 ? e.count : ""), by: (e) => -e.count },
];

function place(event: EventRow): string {
  if (event.kind === "Pod") return to("pods", event.namespace, event.name, "events");
  if (event.kind === "Node") return to("nodes", event.name, "events");
  if (event.kind === "ResourceClaim") return to("claims", event.namespace, event.name);
  return to("activity");
}

function Events() {
  const [filter, setFilter] = useState("");
  const [kind, setKind] = useState("all");
  const version = events.version.value;
  const rows = events.rows();
  const warnings = useMemo(() => rows.filter((e) => e.warning), [version, rows]);
  const shown = useMemo(() => filtered(kind === "all" ? rows : warnings, filter), [rows, warnings, kind, filter]);
  return (
    <>
      <div class="strip">
        <Choice label="Which events" value={kind} onChoose={setKind} options={[{ id: "all", text: "All", n: rows.length }, { id: "warnings", text: "Warnings", n: warnings.length, tone: "warn" }]} />
        <span class="space" />
        <Filter what="events" value={filter} onInput={setFilter} />
      </div>
      <Hindrance of={events} what="events" />
      {events.state.value !== "denied" && <Grid label="Events" rows={shown} columns={COLUMNS} href={place} nothing="No events. They are kept for an hour." />}
    </>
  );
}

const PLACES: Record<string, (key: string) => string> = {
  pods: (key) => to("pods", ...key.split("/")),
  nodes: (key) => to("nodes", key),
  resourceclaims: (key) => to("claims", ...key.split("/")),
};

function Changes() {
  const all = seen.value;
  return (
    <div class="scroll">
      <p class="note">What has changed since this page was opened, newest first. The last 500 are kept.</p>
      {all.length === 0 && <Nothing>Nothing yet.</Nothing>}
      <ul class="list">
        {all.map((change) => {
          const where = PLACES[change.plural];
          return (
            <li key={change.id}>
              <div class="line">
                <span class="when muted"><Ago at={change.at} /></span>
                <span class="what"><span class="muted">{change.plural}</span> {where ? <a href={where(change.key)}>{change.key}</a> : change.key}</span>
                <span class="why" title={change.what}>{change.what}</span>
              </div>
            </li>
          );
        })}
      </ul>
    </div>
  );
}

export function Activity({ tab }: { tab: string }) {
  const current = tab || "events";
  return (
    <>
      <Head title="Activity" />
      <Tabs label="Activity" current={current} tabs={[
        { id: "events", text: "Events", href: to("activity") },
        { id: "changes", text: "Changes", href: to("activity", "changes") },
      ]} />
      {current === "events" ? <Events /> : <Changes />}
    </>
  );
}
