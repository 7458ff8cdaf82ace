/** Why no node took a pod, drawn: how many nodes gave each reason, and what each node lacks. */
import { count, shown } from "../model/amounts";
import { causeText, type DeviceRefusal, type Misfit, type NodeVerdict, type Refusal, type Shortage, type Verdict } from "../model/events";
import { to } from "../route";
import { Ago, Mark, Panel } from "../ui/parts";

/** What is there, what is used of it, and by how much the request goes beyond. */
function ShortageBar({ shortage }: { shortage: Shortage }) {
  const { resource, requested, used, capacity } = shortage;
  // CPUs are counted in thousandths
  const of = (n: number) => (resource === "cpu" ? `${n / 1000}` : shown(resource, n));
  const whole = Math.max(capacity, used + requested, 1);
  const percent = (n: number) => `${(Math.max(0, n) / whole) * 100}%`;
  const free = Math.max(0, capacity - used);
  const words = `${resource}: asks for ${of(requested)}, ${of(free)} of ${of(capacity)} free`;
  return (
    <div class="shortage">
      <span class="label mono">{resource}</span>
      <span class="track" role="img" aria-label={words}>
        <span class="capacity" style={{ width: percent(capacity) }} />
        <span class="used" style={{ width: percent(used) }} />
        <span class="asked" style={{ left: percent(used), width: percent(Math.min(requested, free)) }} />
        <span class="lacking" style={{ left: percent(used + Math.min(requested, free)), width: percent(requested - free) }} />
        <span class="edge" style={{ left: percent(capacity) }} />
      </span>
      <span class="figures">asks for <strong>{of(requested)}</strong>, {of(free)} of {of(capacity)} free</span>
    </div>
  );
}

/** Devices that are ruled out for the same reason, by their last names. */
function byCause(refused: DeviceRefusal[]): [string, string[]][] {
  const out = new Map<string, string[]>();
  for (const one of refused) {
    const cause = causeText(one);
    out.set(cause, [...(out.get(cause) ?? []), one.device.split("/").pop() ?? one.device]);
  }
  return [...out];
}

function Legend() {
  return (
    <p class="legend muted" aria-hidden="true">
      <span class="track"><span class="used" /></span>in use
      <span class="track"><span class="asked" /></span>asked for, and free
      <span class="track"><span class="lacking" /></span>asked for, and not there
    </p>
  );
}

function DeviceRefusals({ refusal }: { refusal: Refusal }) {
  return (
    <>
      {refusal.error && <p class="bad-text">{refusal.error}</p>}
      {refusal.pools?.map((p) => <p key={p.pool} class="bad-text">pool {p.pool}: {p.reason}</p>)}
      {refusal.requests.map((r) => (
        <div key={`${r.claim}/${r.request}`} class="refusals">
          <h3>Request <span class="mono">{r.request}</span> of claim {r.claim}: {r.wanted == null ? "all" : r.wanted} wanted, {r.usable} of {refusal.devices} usable</h3>
          {r.together?.map((t) => <p key={t}>{t}</p>)}
          <ul>
            {byCause(r.devices).map(([cause, devices]) => (
              <li key={cause}>
                <span>{devices.join(", ")}</span>
                <span class="muted">{cause}</span>
              </li>
            ))}
          </ul>
        </div>
      ))}
    </>
  );
}

function NodeCard({ verdict }: { verdict: NodeVerdict }) {
  return (
    <li class="verdict">
      <header>
        <a href={to("nodes", verdict.node)}>{verdict.node}</a>
        <Mark state={verdict.plugin} tone="quiet" />
      </header>
      {verdict.reasons.map((reason) => <p key={reason}>{reason}</p>)}
      {verdict.shortages?.map((s) => <ShortageBar key={s.resource} shortage={s} />)}
      {verdict.devices && <DeviceRefusals refusal={verdict.devices} />}
      {verdict.volumes?.map((v) => <p key={v.claim}>claim {v.claim}: {v.why}</p>)}
    </li>
  );
}

export function VerdictView({ verdict }: { verdict: Verdict }) {
  const reasons = Object.entries(verdict.reasons).sort((a, b) => b[1] - a[1]);
  return (
    <Panel wide title="Why no node takes it" aside={<span class="muted">attempt {verdict.attempt}, <Ago at={Date.parse(verdict.at)} /> ago, {count(verdict.totalNodes, "node")}</span>}>
      {verdict.preFilter && <p class="bad-text">Before any node was looked at: {verdict.preFilter}</p>}
      <ul class="bars reasons" aria-label="Reasons and how many nodes gave them">
        {reasons.map(([reason, n]) => (
          <li key={reason}>
            <span class="label">{reason}</span>
            <span class="figures">{count(n, "node")}</span>
            <span class="meter" aria-hidden="true"><span class="part bad" style={{ width: `${(n / Math.max(1, verdict.totalNodes)) * 100}%` }} /></span>
          </li>
        ))}
      </ul>
      {verdict.nodes.some((v) => v.shortages?.length) && <Legend />}
      <ul class="verdicts" aria-label="The verdict of each node">{verdict.nodes.map((v) => <NodeCard key={v.node} verdict={v} />)}</ul>
      {verdict.moreNodes > 0 && <p class="more muted">The record names {verdict.nodes.length} nodes; {count(verdict.moreNodes, "more")} refused for the reasons above.</p>}
      {verdict.postFilter && <p class="more muted">Making room: {verdict.postFilter.replace(/^preemption: /, "")}</p>}
      {verdict.nominated && <p>Room is being made for it on node {verdict.nominated}.</p>}
    </Panel>
  );
}

/** What a node could not place together, and what would have to be freed. */
export function MisfitView({ misfit, node }: { misfit: Misfit; node: string }) {
  return (
    <Panel wide title={`What node ${node} could not place together`} aside={<span class="muted">policy {misfit.policy}, scope {misfit.scope}{misfit.container && `, container ${misfit.container}`}</span>}>
      <ul class="verdicts">
        {misfit.options.map((option) => (
          <li key={option.nodes.join()} class="verdict">
            <header><strong>NUMA node{option.nodes.length === 1 ? "" : "s"} {option.nodes.join(", ")}</strong><span class="muted">{option.possible ? "freeing what is held there would be enough" : "not even if all were free"}</span></header>
            {option.resources.map((r) => (
              <div key={r.name}>
                <ShortageBar shortage={{ resource: r.name, requested: r.name === "cpu" ? r.requested * 1000 : r.requested, used: (r.total - r.free) * (r.name === "cpu" ? 1000 : 1), capacity: r.total * (r.name === "cpu" ? 1000 : 1) }} />
                {r.fixed && <p class="muted">{r.fixed}</p>}
                {r.missing > 0 && (r.occupants ?? []).map((o) => (
                  <p key={`${o.namespace}/${o.pod}/${o.container}`} class="muted">{shown(r.name, o.amount)} held by <a href={to("pods", o.namespace, o.pod)}>{o.namespace}/{o.pod}</a></p>
                ))}
              </div>
            ))}
          </li>
        ))}
      </ul>
    </Panel>
  );
}
