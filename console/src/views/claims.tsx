/** Claims, and the way of one from its requests to its devices and to who uses them. */
import { useMemo, useState } from "preact/hooks";
import { namespace as looked } from "../api/session";
import { claims, classes, slices, type ClaimDevice, type ClaimRow, type SliceDevice } from "../model/claims";
import { to } from "../route";
import { filtered, Grid, type Column } from "../ui/grid";
import { Ago, Choice, Filter, Head, Elsewhere, Hindrance, Mark, Nothing, Panel, Tabs, toneOf } from "../ui/parts";
import { EventLines } from "./events";
import { ObjectText } from "./object";

function requestsText(claim: ClaimRow): string {
  return claim.requests.map((r) => r.choices.map((c) => `${c.want} of ${c.className || "?"}`).join(" or ")).join(", ");
}

const COLUMNS: Column<ClaimRow>[] = [
  { id: "name", head: "Name", width: "minmax(150px, 2fr)", cell: (c) => c.name, by: (c) => c.name },
  { id: "namespace", head: "Namespace", width: "minmax(90px, 1fr)", cell: (c) => c.namespace, by: (c) => c.sort },
  { id: "state", head: "State", width: "104px", cell: (c) => <Mark state={c.state} />, by: (c) => c.state },
  { id: "requests", head: "Asks for", width: "minmax(130px, 2fr)", cell: (c) => <span title={requestsText(c)}>{requestsText(c)}</span>, by: requestsText },
  { id: "devices", head: "Has", width: "minmax(130px, 2fr)", cell: (c) => c.devices.map((d) => `${d.pool}/${d.device}`).join(", ") },
  { id: "pods", head: "For", width: "minmax(110px, 1fr)", cell: (c) => c.pods.join(", ") },
  { id: "age", head: "Age", width: "66px", number: true, cell: (c) => <Ago at={c.created} />, by: (c) => -c.created },
];

export function ClaimList() {
  const [filter, setFilter] = useState("");
  const [state, setState] = useState("all");
  const version = claims.version.value;
  const rows = claims.rows();
  const n = (of: string) => rows.filter((c) => c.state === of).length;
  const shown = useMemo(() => filtered(state === "all" ? rows : rows.filter((c) => c.state === state), filter), [version, rows, state, filter]);
  const options = ["Pending", "Allocated", "In use"].map((s) => ({ id: s, text: s, n: n(s), tone: toneOf(s) })).filter((o) => o.n > 0 || o.id === state);
  return (
    <>
      <Head title="Claims">
        <Choice label="Which claims" value={state} onChoose={setState} options={[{ id: "all", text: "All", n: rows.length }, ...options]} />
        <Filter what="claims" value={filter} onInput={setFilter} />
      </Head>
      <Hindrance of={claims} what="resource claims" />
      {claims.state.value !== "denied" && <Grid label="Claims" rows={shown} columns={COLUMNS} href={(c) => to("claims", c.namespace, c.name)} nothing={filter ? "No claim fits the filter." : "There are no resource claims."} />}
    </>
  );
}

function sliceDevice(of: ClaimDevice): { node: string; device: SliceDevice | undefined } {
  const slice = slices.rows().find((s) => s.driver === of.driver && s.pool === of.pool && s.devices.some((d) => d.name === of.device));
  return { node: slice?.node ?? "", device: slice?.devices.find((d) => d.name === of.device) };
}

/** The step from one column to the next. */
function Step() {
  return <span class="step" aria-hidden="true"><svg viewBox="0 0 40 12" width="40" height="12"><path d="M0 6h34M29 1.5 34.5 6 29 10.5" /></svg></span>;
}

function Flow({ claim }: { claim: ClaimRow }) {
  slices.version.value;
  classes.version.value;
  return (
    <ol class="flow" aria-label="From request to device">
      {claim.requests.map((request) => {
        const got = claim.devices.filter((d) => d.request === request.name || d.request.startsWith(`${request.name}/`));
        return (
          <li key={request.name} class="path">
            <div class="stop asks">
              <h2>Request <span class="mono">{request.name}</span></h2>
              {request.choices.map((c, at) => (
                <div key={c.name} class="choice-of">
                  {request.choices.length > 1 && <span class="muted">{at === 0 ? "first" : "else"} </span>}
                  <strong>{c.want}</strong> of class <strong>{c.className || "?"}</strong>
                  {(classes.get(c.className)?.selectors ?? []).map((s) => <code key={s} class="block" title={`Class ${c.className}`}>{s}</code>)}
                  {c.selectors.map((s) => <code key={s} class="block">{s}</code>)}
                </div>
              ))}
            </div>
            <Step />
            <ul class="stop gets" aria-label={`Devices of request ${request.name}`}>
              {got.length === 0 && <li class="device none">no device yet</li>}
              {got.map((d) => {
                const { node, device } = sliceDevice(d);
                return (
                  <li key={`${d.driver}/${d.pool}/${d.device}`} class="device">
                    <strong>{d.device}</strong>
                    <span class="muted mono">{d.driver}</span>
                    <span>pool {d.pool}{node && <> on <a href={to("nodes", node)}>{node}</a></>}{device && device.numa.length > 0 && `, NUMA node ${device.numa.join(", ")}`}</span>
                    {device && <span class="muted attributes">{[...device.capacity.map(([k, v]) => `${k} ${v}`), ...device.attributes.map(([k, v]) => `${k}=${v}`)].join("  ")}</span>}
                    {device?.taints.map((t) => <Mark key={t} state={t} tone="warn" />)}
                    {d.conditions.map((c) => <span key={c} class="muted">{c}</span>)}
                  </li>
                );
              })}
            </ul>
            <Step />
            <ul class="stop users" aria-label="Pods it is reserved for">
              {claim.pods.length === 0 && <li class="none">no pod</li>}
              {claim.pods.map((pod) => <li key={pod}><a href={to("pods", claim.namespace, pod)}>{pod}</a></li>)}
            </ul>
          </li>
        );
      })}
    </ol>
  );
}

export function ClaimPage({ namespace, name, tab }: { namespace: string; name: string; tab: string }) {
  claims.version.value;
  const claim = claims.get(`${namespace}/${name}`);
  const isElsewhere = looked.value !== "" && looked.value !== namespace;
  const current = tab || "way";
  const tabs = [
    { id: "way", text: "Request to device", href: to("claims", namespace, name) },
    { id: "events", text: "Events", href: to("claims", namespace, name, "events") },
    { id: "object", text: "Object", href: to("claims", namespace, name, "object") },
  ];
  return (
    <>
      <Head title={name} above={<><a href={to("claims")}>Claims</a> / {namespace}</>}>
        {claim && <Mark state={claim.state} />}
        {claim && <span class="muted">for <Ago at={claim.created} /></span>}
      </Head>
      <Tabs label="Claim" current={current} tabs={tabs} />
      <Hindrance of={claims} what="resource claims" />
      {isElsewhere && <Elsewhere of={namespace} />}
      {!claim && !isElsewhere && claims.state.value === "live" && <Nothing>There is no claim {name} in namespace {namespace}.</Nothing>}
      {current === "events" && <div class="scroll"><EventLines about={(e) => e.kind === "ResourceClaim" && e.namespace === namespace && e.name === name} /></div>}
      {current === "object" && <ObjectText path={`/apis/resource.k8s.io/v1/namespaces/${encodeURIComponent(namespace)}/resourceclaims/${encodeURIComponent(name)}`} />}
      {claim && current === "way" && (
        <div class="scroll">
          <Hindrance of={slices} what="resource slices" />
          <Flow claim={claim} />
          {claim.constraints.length > 0 && <Panel title="Together"><p>{claim.constraints.join(", ")}</p></Panel>}
          {claim.state === "Pending" && (
            <p class="note">A claim is allocated when a pod that uses it is scheduled. If the pod stays pending, its page says what rules out each node's devices; <code>davit explain claim {name} -n {namespace}</code> asks for the claim alone.</p>
          )}
        </div>
      )}
    </>
  );
}
