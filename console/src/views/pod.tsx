/** One pod: why it is where and as it is, what it holds, its logs, a terminal in it. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { may, namespace as looked } from "../api/session";
import { claims } from "../model/claims";
import { allDevices, tables, type TableDevice } from "../model/devices";
import { events, latestMisfit, latestVerdict } from "../model/events";
import { pods, type PodRow } from "../model/pods";
import { to } from "../route";
import { Ago, Facts, Guarded, Head, Elsewhere, Hindrance, Mark, Nothing, Panel, Tabs } from "../ui/parts";
import { EventLines } from "./events";
import { Logs } from "./logs";
import { ObjectText } from "./object";
import { Shell } from "./shell";
import { MisfitView, VerdictView } from "./verdict";

function Containers({ pod }: { pod: PodRow }) {
  return (
    <Panel title="Containers" wide>
      <table class="plain">
        <thead><tr><th scope="col">Name</th><th scope="col">State</th><th scope="col">Restarts</th><th scope="col">Image</th><th scope="col">Why</th></tr></thead>
        <tbody>
          {pod.containers.map((c) => (
            <tr key={c.name}>
              <td>{c.name}{c.init && <span class="muted"> init</span>}</td>
              <td><Mark state={c.state === "unknown" ? "not started" : c.state} tone={c.state === "running" ? "ok" : c.reason ? "warn" : "quiet"} /></td>
              <td>{c.restarts}</td>
              <td class="mono muted">{c.image}</td>
              <td class="muted">{[c.reason, c.message].filter(Boolean).join(": ")}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Panel>
  );
}

interface Held {
  key: string;
  what: string;
  source: string;
  numa: string;
  state: string;
  container: string;
}

function held(pod: PodRow): Held[] {
  const told = tables.value.get(pod.node);
  const out: Held[] = [];
  const ours = (device: TableDevice) => (device.holders ?? []).filter((h) => h.uid === pod.uid);
  if (told && typeof told !== "string") {
    for (const device of [...told.devices, ...(told.held ?? [])]) {
      for (const holder of ours(device)) {
        out.push({ key: `${device.resource}/${device.id}/${holder.container}`, what: device.id, source: device.resource, numa: (device.numaNodes ?? []).join(", "), state: device.health, container: holder.container });
      }
    }
    return out;
  }
  for (const device of allDevices()) {
    if (device.holderKey === pod.key) out.push({ key: device.key, what: device.id, source: device.source, numa: device.numa.join(", "), state: device.state, container: "" });
  }
  return out;
}

function Holdings({ pod }: { pod: PodRow }) {
  const all = held(pod);
  if (all.length === 0) return null;
  return (
    <Panel title="Devices, CPUs and memory it holds" wide>
      <table class="plain">
        <thead><tr><th scope="col">Resource or driver</th><th scope="col">What</th><th scope="col">NUMA</th><th scope="col">Container</th><th scope="col">State</th></tr></thead>
        <tbody>
          {all.map((h) => (
            <tr key={h.key}><td class="mono">{h.source}</td><td>{h.what}</td><td>{h.numa}</td><td>{h.container}</td><td>{h.state && <Mark state={h.state} />}</td></tr>
          ))}
        </tbody>
      </table>
    </Panel>
  );
}

function Overview({ pod }: { pod: PodRow }) {
  events.version.value;
  const about = useMemo(() => events.rows().filter((e) => e.uid === pod.uid), [events.version.value, pod.uid]);
  const verdict = pod.node === "" ? latestVerdict(about) : undefined;
  const misfit = latestMisfit(about);
  const news = String(events.version.value);
  const asks = pod.wants.map(([name, n]) => `${n} of ${name}`).join(", ");
  return (
    <div class="scroll">
      {pod.why !== "" && <p class={`lead${pod.state === "Refused" || pod.state === "Failed" ? " bad" : ""}`}>{pod.why}</p>}
      <div class="panels">
        {verdict && <Guarded of={news} what="The scheduler's record"><VerdictView verdict={verdict} /></Guarded>}
        {pod.state === "Pending" && !verdict && events.state.value === "denied" && <Hindrance of={events} what="events, which have the scheduler's verdict" />}
        {misfit && <Guarded of={news} what="The node's record"><MisfitView misfit={misfit} node={pod.node} /></Guarded>}
        <Holdings pod={pod} />
        <Containers pod={pod} />
        <Panel title="What it is">
          <Facts facts={[
            ["Namespace", pod.namespace],
            ["Node", pod.node ? <a href={to("nodes", pod.node)}>{pod.node}</a> : "none yet"],
            ["Address", pod.address || "–"],
            ["Class", pod.qos || "–"],
            ["Asks for", asks || "no devices of plugins"],
            ["Claims", pod.claims.length === 0 ? "none" : pod.claims.map((c, at) => <span key={c}>{at > 0 && ", "}<a href={to("claims", pod.namespace, c)}>{c}</a>{claims.get(`${pod.namespace}/${c}`)?.state === "Pending" && <span class="muted"> pending</span>}</span>)],
          ]} />
        </Panel>
        <Panel title="Conditions">
          <table class="plain">
            <tbody>
              {pod.conditions.map((c) => <tr key={c.type}><td>{c.type}</td><td><Mark state={c.status} tone={c.status === "True" ? "ok" : "warn"} /></td><td class="muted">{c.message ?? c.reason}</td></tr>)}
            </tbody>
          </table>
        </Panel>
      </div>
    </div>
  );
}

/** Whether the user may read logs and open terminals here; null while the server is being asked. */
function usePermissions(namespace: string, name: string): { logs: boolean | null; shell: boolean | null } {
  const [answer, setAnswer] = useState<{ logs: boolean | null; shell: boolean | null }>({ logs: null, shell: null });
  useEffect(() => {
    let gone = false;
    const ask = async () => {
      const where = { namespace, name };
      const [logs, get, create] = await Promise.all([
        may("get", "pods", { ...where, subresource: "log" }),
        may("get", "pods", { ...where, subresource: "exec" }),
        may("create", "pods", { ...where, subresource: "exec" }),
      ]);
      if (!gone) setAnswer({ logs, shell: get && create });
    };
    // if the server cannot be asked, trying tells
    ask().catch(() => !gone && setAnswer({ logs: true, shell: true }));
    return () => void (gone = true);
  }, [namespace, name]);
  return answer;
}

function Denied({ what, verb }: { what: string; verb: string }) {
  return <div class="hindrance" role="status"><strong>You may not {what} here.</strong><p>That needs {verb} in this namespace.</p></div>;
}

export function PodPage({ namespace, name, tab }: { namespace: string; name: string; tab: string }) {
  pods.version.value;
  const pod = pods.get(`${namespace}/${name}`);
  const allowed = usePermissions(namespace, name);
  const isElsewhere = looked.value !== "" && looked.value !== namespace;
  const current = tab || "overview";
  const tabs = [
    { id: "overview", text: pod && pod.state !== "Running" && pod.why ? "Why" : "Overview", href: to("pods", namespace, name) },
    { id: "logs", text: "Logs", href: to("pods", namespace, name, "logs") },
    { id: "terminal", text: "Terminal", href: to("pods", namespace, name, "terminal") },
    { id: "events", text: "Events", href: to("pods", namespace, name, "events") },
    { id: "object", text: "Object", href: to("pods", namespace, name, "object") },
  ];
  return (
    <>
      <Head title={name} above={<><a href={to("pods")}>Pods</a> / {namespace}</>}>
        {pod && <Mark state={pod.state} />}
        {pod && <span class="muted">for <Ago at={pod.created} />{pod.node && <> on <a href={to("nodes", pod.node)}>{pod.node}</a></>}</span>}
      </Head>
      <Tabs label="Pod" current={current} tabs={tabs} />
      <Hindrance of={pods} what="pods" />
      {isElsewhere && <Elsewhere of={namespace} />}
      {!pod && !isElsewhere && pods.state.value === "live" && <Nothing>There is no pod {name} in namespace {namespace}.</Nothing>}
      {pod && current === "overview" && <Overview pod={pod} />}
      {pod && current === "logs" && (allowed.logs === false ? <Denied what="read logs" verb="get on pods/log" /> : allowed.logs && <Logs key={pod.uid} pod={pod} />)}
      {pod && current === "terminal" && (allowed.shell === false ? <Denied what="run programs in containers" verb="get and create on pods/exec" /> : allowed.shell && <Shell key={pod.uid} pod={pod} />)}
      {current === "events" && <div class="scroll"><EventLines about={(e) => e.kind === "Pod" && e.namespace === namespace && e.name === name} /></div>}
      {current === "object" && <ObjectText path={`/api/v1/namespaces/${encodeURIComponent(namespace)}/pods/${encodeURIComponent(name)}`} />}
    </>
  );
}
