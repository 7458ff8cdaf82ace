/** Begins: draws the login page, and when somebody is logged in, what he may see. */
import { effect } from "@preact/signals";
import { render } from "preact";
import { home, isLoggedIn, namespace } from "./api/session";
import { classes, claims, slices } from "./model/claims";
import { followNodes } from "./model/devices";
import { events } from "./model/events";
import { nodes, topologies } from "./model/nodes";
import { pods } from "./model/pods";
import { route } from "./route";
import { Activity } from "./views/activity";
import { ClaimList, ClaimPage } from "./views/claims";
import { ClusterPage } from "./views/cluster";
import { DevicePages } from "./views/devices";
import { Frame } from "./views/frame";
import { Login } from "./views/login";
import { NodePage } from "./views/node";
import { NodeList } from "./views/nodes";
import { PodPage } from "./views/pod";
import { PodList } from "./views/pods";
import { Guarded } from "./ui/parts";
import "./ui/theme";

function View() {
  const [place = "cluster", ...rest] = route.value;
  const [one = "", two = "", three = ""] = rest;
  if (place === "nodes") return one === "" ? <NodeList /> : <NodePage key={one} name={one} tab={two} />;
  if (place === "devices") return <DevicePages tab={one} />;
  if (place === "claims") return two === "" ? <ClaimList /> : <ClaimPage key={`${one}/${two}`} namespace={one} name={two} tab={three} />;
  if (place === "pods") return two === "" ? <PodList /> : <PodPage key={`${one}/${two}`} namespace={one} name={two} tab={three} />;
  if (place === "activity") return <Activity tab={one} />;
  return <ClusterPage />;
}

const TITLES: Record<string, string> = { nodes: "Nodes", devices: "Devices", claims: "Claims", pods: "Pods", activity: "Activity" };

function title(): string {
  const [place = "", ...rest] = route.value;
  const name = place === "nodes" ? rest[0] : rest.slice(0, 2).join("/");
  return [name, TITLES[place] ?? "Cluster"].filter(Boolean).join(" · ");
}

function Console() {
  if (!isLoggedIn.value) return <Login />;
  const view = <Guarded of={route.value.join("/")} what="Something that is to be shown here"><View /></Guarded>;
  return <Frame title={title()}>{view}</Frame>;
}

effect(() => {
  if (!isLoggedIn.value) return;
  for (const collection of [nodes, topologies, pods, events, slices, classes, claims]) collection.open();
});
effect(() => {
  if (isLoggedIn.value && nodes.version.value > 0 && nodes.state.value === "live") followNodes();
});
// who may not look at all namespaces is shown his own
effect(() => {
  if (isLoggedIn.value && pods.state.value === "denied" && namespace.peek() === "") namespace.value = home();
});

const app = document.getElementById("app")!;
app.textContent = "";
render(<Console />, app);
