// The console as its users see it. tests/console.rs starts the cluster: a real node `lab-1` with the pod `shell`, simulated
// nodes `sim-0` and `sim-1` with a machine of two NUMA nodes, devices and a driver, and pods that hold or want them.
import assert from "node:assert/strict";
import { mkdir } from "node:fs/promises";
import { api, goTo, inaccessible, launch, logIn, open, server } from "./page.mjs";

const admin = process.env.CONSOLE_ADMIN;
const viewer = process.env.CONSOLE_VIEWER;
const shots = process.env.CONSOLE_SHOTS;
const browser = await launch();
let shower;
let count = 0;

async function step(name, action) {
  const began = Date.now();
  try {
    await action();
    count += 1;
    console.log(`ok   ${name} (${Date.now() - began} ms)`);
  } catch (error) {
    console.log(`FAIL ${name}`);
    await here?.page.screenshot({ path: "/tmp/davit-console-failed.png" }).catch(() => {});
    throw error;
  }
}

let here;
const at = (selector) => here.page.locator(selector);
const text = async (selector) => (await at(selector).first().textContent()) ?? "";
const shot = async (name) => {
  if (!shots) return;
  await mkdir(shots, { recursive: true });
  await here.page.waitForTimeout(300);
  await here.page.screenshot({ path: `${shots}/${name}.png` });
};
const accessible = async (where) => assert.deepEqual(await inaccessible(here.page), [], `axe on ${where}`);

try {
  here = await open(browser);
  await step("a stranger is shown the login page, and told when a token is wrong", async () => {
    await here.page.waitForSelector("#token");
    await accessible("login");
    await here.page.fill("#token", "token-of-nobody");
    await here.page.click("form button.primary");
    await at("[role=alert]", { hasText: "does not know this token" }).waitFor();
    await at(".fault:has-text('does not know this token')").waitFor();
  });

  const kubeconfig = (user) => ({
    name: "config",
    mimeType: "text/yaml",
    buffer: Buffer.from(
      `apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: k, user: u, namespace: default}}]\n` +
        `clusters: [{name: k, cluster: {server: "${server}"}}]\nusers: [{name: u, user: ${user}}]\n`,
    ),
  });
  await step("of a kubeconfig the token is taken, and of others it is said why not", async () => {
    for (const [user, said] of [
      ["{client-certificate-data: aaa, client-key-data: bbb}", "only the browser can"],
      ["{exec: {command: aws}}", "cannot start"],
      ["{tokenFile: /var/run/token}", "cannot open"],
    ]) {
      await here.page.setInputFiles("#kubeconfig", kubeconfig(user));
      await at(`.fault:has-text("${said}")`).waitFor();
    }
    await here.page.setInputFiles("#kubeconfig", kubeconfig(`{token: ${admin}}`));
    await here.page.waitForSelector(".rail");
    assert.equal(await here.page.inputValue(".namespace select"), "default");
    await here.page.click("text=Log out");
    await here.page.waitForSelector("#token");
  });

  await step("the cluster at a glance", async () => {
    await logIn(here.page, admin);
    await at(".tile:has-text('Nodes') .value:text-is('3')").waitFor();
    await at(".list:has-text('default/too-hungry')").waitFor();
    await at(".bars:has-text('gpu.vendor.example')").waitFor();
    await accessible("cluster");
    await shot("cluster");
  });

  await step("by the keyboard from the list to a node, and back", async () => {
    await goTo(here.page, "nodes", ".rows .row >> nth=2");
    await here.page.keyboard.press("/");
    await here.page.keyboard.type("sim-");
    await here.page.waitForFunction(() => document.querySelectorAll(".rows .row").length === 2);
    await accessible("nodes");
    await here.page.keyboard.press("Tab");
    await here.page.keyboard.press("ArrowDown");
    await here.page.keyboard.press("ArrowUp");
    const active = await at("[role=grid]").getAttribute("aria-activedescendant");
    assert.equal(await here.page.locator(`#${active} [role=gridcell]`).first().textContent(), "sim-0");
    await here.page.keyboard.press("Enter");
    await here.page.waitForSelector(".place");
    assert.equal(await here.page.evaluate(() => document.activeElement.tagName + document.activeElement.textContent), "H1sim-0");
    await here.page.keyboard.press("Escape");
    await here.page.waitForSelector("[role=grid]");
  });

  await step("a node's picture: which pod has which CPUs, memory and devices", async () => {
    await goTo(here.page, "nodes/sim-0", ".cpu[title*='default/trainer']");
    assert.equal(await at("section.place").count(), 2);
    assert.equal(await at(".cpu").count(), 32);
    assert.equal(await at(".cpu[title*='default/trainer']").count(), 4);
    assert.equal(await at(".cpu[title*='default/camera-feed']").count(), 6);
    assert.equal(await at(".chip:has-text('default/trainer')").count(), 2);
    assert.match(await text(".holders"), /default\/trainer\s*4 CPUs, 8 GiB, 2 devices/);
    await at(".chip.trouble:has-text('foo-7')").waitFor();
    await accessible("node");
    await shot("node");
  });

  await step("devices of plugins and drivers in one list", async () => {
    await goTo(here.page, "devices", ".rows .row:has-text('gpu-0')");
    await here.page.fill("[data-filter]", "renderer");
    await here.page.waitForFunction(() => document.querySelectorAll(".rows .row").length === 3);
    await here.page.fill("[data-filter]", "");
    await accessible("devices");
    await shot("devices");
    await goTo(here.page, "devices/sources", ".rows .row:has-text('hardware-vendor.example/foo')");
    await goTo(here.page, "devices/slices", ".rows .row:has-text('gpu.vendor.example')");
    await goTo(here.page, "devices/classes", ".cards:has-text('gpu')");
    await accessible("classes");
  });

  await step("a claim from request to device", async () => {
    await goTo(here.page, "claims/default/two-gpus", ".flow .device >> nth=2");
    assert.match(await text(".flow"), /Request train.*2 of class gpu.*gpu-\d.*renderer/s);
    await accessible("claim");
    await shot("claim");
  });

  await step("a pending pod with the verdict of every node, drawn", async () => {
    await goTo(here.page, "pods/default/too-hungry", ".verdict >> nth=2");
    const verdict = await text(".verdict:has-text('sim-0')");
    assert.match(verdict, /NodeResourcesFit.*Insufficient hardware-vendor.example\/foo.*asks for 9, 5 of 7 free/s);
    await accessible("verdict");
    await shot("pending");
    await goTo(here.page, "pods/default/wants-h200", ".verdict:has-text('sim-0') .refusals");
    assert.match(await text(".verdict:has-text('sim-0') .refusals"), /model == "H200" is false/);
  });

  await step("changes are seen as they happen", async () => {
    await goTo(here.page, "pods", ".rows .row:has-text('trainer')");
    const pod = { apiVersion: "v1", kind: "Pod", metadata: { name: "newcomer", namespace: "default" }, spec: { nodeName: "sim-1", containers: [{ name: "c", image: "any" }] } };
    await api(admin, "POST", "/api/v1/namespaces/default/pods", pod);
    await at(".rows .row:has-text('newcomer'):has-text('Running')").waitFor();
    await api(admin, "DELETE", "/api/v1/namespaces/default/pods/newcomer", { gracePeriodSeconds: 0 });
    await at(".rows .row:has-text('newcomer')").waitFor({ state: "detached" });
    await accessible("pods");
    await goTo(here.page, "activity/changes", ".line:has-text('newcomer'):has-text('gone')");
    await accessible("changes");
  });

  await step("a node that answers with no table of devices leaves the page as it is", async () => {
    for (const told of ["null", "{}", '{"generation":1,"devices":[{"numaNodes":5,"holders":{}}],"numa":[null]}', "<html></html>"]) {
      const other = await open(browser);
      await other.page.route(/proxy\/devices/, (route) => route.fulfill({ status: 200, contentType: "application/json", body: `${told}\n` }));
      await logIn(other.page, admin);
      await goTo(other.page, "devices", ".note:has-text('cannot be read')");
      await goTo(other.page, "nodes/sim-0", "h1:has-text('sim-0')");
      await goTo(other.page, "cluster", ".tile:has-text('Nodes')");
      assert.deepEqual(other.faults, []);
      await other.context.close();
    }
  });

  await step("records that others wrote in a form of their own leave the page as it is", async () => {
    const { metadata } = await api(admin, "GET", "/api/v1/namespaces/default/pods/too-hungry");
    const records = { verdict: ['{"at":"9999-01-01T00:00:00Z"}', "null", "[]", '{"at":5,"nodes":[null]}'], refusal: ['{"options":5}'] };
    const made = [];
    for (const [kind, texts] of Object.entries(records)) {
      for (const record of texts) {
        const event = {
          apiVersion: "v1", kind: "Event", metadata: { generateName: "record-", namespace: "default", annotations: { [`davit.dev/${kind}`]: record } },
          reason: "Record", message: "of another", involvedObject: { kind: "Pod", namespace: "default", name: "too-hungry", uid: metadata.uid }, lastTimestamp: new Date().toISOString(),
        };
        made.push(await api(admin, "POST", "/api/v1/namespaces/default/events", event));
      }
    }
    await goTo(here.page, "pods/default/too-hungry", ".panel:has-text('Containers')");
    const strange = at(".hindrance:has-text('in a form that is not known')");
    await strange.nth(1).waitFor();
    assert.equal(await strange.count(), 2);
    await accessible("strange records");
    await goTo(here.page, "cluster", ".tile:has-text('Nodes')");
    for (const event of made) await api(admin, "DELETE", `/api/v1/namespaces/default/events/${event.metadata.name}`);
  });

  await step("markup in names, messages, attributes and logs stays text", async () => {
    const markup = `<img src=x onerror="alert(1)"><script>alert(2)</script>`;
    const event = {
      apiVersion: "v1", kind: "Event", metadata: { generateName: "markup-", namespace: "default" }, type: "Warning", reason: "Markup", message: markup,
      involvedObject: { kind: "Pod", namespace: "default", name: "shell" }, firstTimestamp: new Date().toISOString(), lastTimestamp: new Date().toISOString(),
    };
    await api(admin, "POST", "/api/v1/namespaces/default/events", event);
    await api(admin, "PATCH", "/api/v1/namespaces/default/pods/shell", { metadata: { annotations: { markup } } });
    await goTo(here.page, "activity", ".row:has-text('onerror')");
    await accessible("events");
    await goTo(here.page, "cluster", ".line:has-text('onerror')");
    await goTo(here.page, "pods/default/shell/object", "pre:has-text('onerror')");
    await accessible("object");
    await goTo(here.page, "nodes/sim-1", ".chip");
    await goTo(here.page, "devices", ".row:has-text('<b>odd</b>')");
    await goTo(here.page, "pods/default/shell/logs", "pre:has-text('<script>alert(3)</script>')");
    await at("[role=status]:has-text('Following')").waitFor();
    await accessible("logs");
    assert.equal(await here.page.evaluate(() => document.querySelectorAll("main img, main script, main b").length), 0);
  });

  await step("a terminal in a container", async () => {
    await goTo(here.page, "pods/default/shell/terminal", ".shell button.primary");
    await here.page.click(".shell button.primary");
    await at(".shell [role=status]:has-text('Connected')").waitFor();
    await here.page.keyboard.type("printf '\\033[1;32mgre'; printf 'en\\033[0m <b>bold</b> %s\\n' $((6*7))\n");
    await at(".present:has-text('green <b>bold</b> 42')").waitFor();
    assert.equal(await at(".present .bold.f2:text-is('green')").count(), 1);
    await accessible("terminal");
    await shot("terminal");
    await here.page.keyboard.press("Shift+Escape");
    assert.notEqual(await here.page.evaluate(() => document.activeElement.tagName), "TEXTAREA");
    await at(".terminal").click();
    await here.page.keyboard.type("exit 3\n");
    await at(".shell [role=status]:has-text('ended with code 3')").waitFor();
  });

  await step("dark, by the switch and by the system", async () => {
    await here.page.selectOption(".theme select", "dark");
    for (const [place, ready] of [["cluster", ".tile"], ["nodes/sim-0", ".cpu"], ["pods/default/too-hungry", ".verdict"], ["claims/default/two-gpus", ".flow"]]) {
      await goTo(here.page, place, ready);
      await accessible(`${place}, dark`);
      if (place === "nodes/sim-0") await shot("node-dark");
    }
    await here.page.selectOption(".theme select", "system");
    await here.page.emulateMedia({ colorScheme: "dark" });
    assert.equal(await here.page.evaluate(() => getComputedStyle(document.documentElement).colorScheme), "dark");
  });

  await step("the token is kept nowhere", async () => {
    const kept = await here.page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie, location.href]));
    assert.ok(!kept.includes("token-"), kept);
    await here.page.reload();
    await here.page.waitForSelector("#token");
  });
  assert.deepEqual(here.faults, []);
  await here.context.close();

  here = await open(browser);
  await step("what a user may not read is said, and not shown", async () => {
    await logIn(here.page, viewer);
    await at(".tile:has-text('Nodes') .denied").waitFor();
    await goTo(here.page, "nodes", ".hindrance");
    assert.match(await text(".hindrance"), /You may not read nodes.*User "viewer" cannot list resource "nodes"/s);
    assert.equal(await at("[role=grid]").count(), 0);
    await accessible("denied");
    // the namespace in which he may is taken by itself
    await goTo(here.page, "pods", ".row:has-text('too-hungry')");
    assert.equal(await here.page.inputValue(".namespace input"), "default");
    await goTo(here.page, "claims", ".hindrance:has-text('You may not read resource claims')");
    await goTo(here.page, "pods/default/shell/terminal", ".hindrance:has-text('You may not run programs')");
    await goTo(here.page, "pods/default/shell/logs", ".hindrance:has-text('You may not read logs')");
    await here.page.fill(".namespace input", "kube-system");
    await here.page.keyboard.press("Enter");
    await goTo(here.page, "pods", ".hindrance:has-text('namespace kube-system')");
  });
  assert.deepEqual(here.faults, []);
  await here.context.close();

  if (process.env.CONSOLE_CERT) {
    const certificate = { origin: server, certPath: process.env.CONSOLE_CERT, keyPath: process.env.CONSOLE_KEY };
    shower = await launch({ showsCertificates: true });
    here = await open(shower, { clientCertificates: [certificate] });
    await step("the browser's client certificate logs in", async () => {
      await here.page.click("button:has-text('Continue as')");
      await at(".tile:has-text('Nodes') .value:text-is('3')").waitFor();
      assert.match(await text(".who"), /by certificate/);
    });
    assert.deepEqual(here.faults, []);
  }
} finally {
  await shower?.close();
  await browser.close();
}
console.log(`${count} passed, 0 failed`);
