// A cluster of many nodes and devices, made of objects alone, and how long the page takes over it. Not a test: figures.
//   davit up --no-node --token-auth-file FILE …; CONSOLE_URL=… CONSOLE_ADMIN=… node tests/large.mjs [NODES] [DEVICES-PER-NODE]
import { api, goTo, launch, logIn, open } from "./page.mjs";

const admin = process.env.CONSOLE_ADMIN;
const nodes = Number(process.argv[2] ?? 5000);
const each = Number(process.argv[3] ?? 8);
const now = () => new Date().toISOString();

function node(name) {
  const status = {
    capacity: { cpu: "64", memory: "256Gi", pods: "110", "hardware-vendor.example/foo": "8" },
    allocatable: { cpu: "64", memory: "256Gi", pods: "110", "hardware-vendor.example/foo": "8" },
    conditions: [{ type: "Ready", status: "True", reason: "KubeletReady", lastHeartbeatTime: now(), lastTransitionTime: now() }],
  };
  return { apiVersion: "v1", kind: "Node", metadata: { name }, status };
}

function slice(name) {
  const devices = Array.from({ length: each }, (_, n) => ({
    name: `gpu-${n}`,
    attributes: { model: { string: n % 2 ? "A100" : "H100" }, numaNode: { int: n % 2 } },
    capacity: { memory: { value: "80Gi" } },
  }));
  return {
    apiVersion: "resource.k8s.io/v1", kind: "ResourceSlice", metadata: { name: `gpu-${name}` },
    spec: { driver: "gpu.vendor.example", nodeName: name, pool: { name, generation: 1, resourceSliceCount: 1 }, devices },
  };
}

async function fill() {
  const have = await api(admin, "GET", "/apis/resource.k8s.io/v1/resourceslices?limit=1");
  if (have.items.length > 0) return;
  const names = Array.from({ length: nodes }, (_, n) => `node-${n}`);
  const work = async () => {
    for (let name = names.pop(); name; name = names.pop()) {
      await api(admin, "POST", "/api/v1/nodes", node(name));
      await api(admin, "POST", "/apis/resource.k8s.io/v1/resourceslices", slice(name));
    }
  };
  await Promise.all(Array.from({ length: 32 }, work));
}

/** From an input to the second frame after it: what was asked for is drawn. */
function timed(page, action) {
  return page.evaluate(async (source) => {
    const act = new Function("document", source);
    const began = performance.now();
    act(document);
    await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
    return performance.now() - began;
  }, action);
}

let began = Date.now();
await fill();
console.log(`${nodes} nodes, ${nodes * each} devices made in ${Date.now() - began} ms`);
const browser = await launch();
const { page, faults } = await open(browser, { bypassCSP: true });
await logIn(page, admin);
began = Date.now();
await goTo(page, "devices", ".rows .row");
await page.waitForFunction((n) => Number(document.querySelector("[role=grid]")?.getAttribute("aria-rowcount")) >= n + 1, nodes * each, { timeout: 120_000 });
console.log(`all listed ${Date.now() - began} ms after login`);
await page.waitForTimeout(2000);
const type = (text) => `const i = document.querySelector("[data-filter]"); i.value = ${JSON.stringify(text)}; i.dispatchEvent(new Event("input", { bubbles: true }));`;
const scroll = (part) => `const g = document.querySelector("[role=grid]"); g.scrollTop = g.scrollHeight * ${part};`;
const figures = {};
for (const text of ["h", "h100", "node-49", "node-499 a100", ""]) figures[`filter ${JSON.stringify(text)}`] = await timed(page, type(text));
for (const part of [0.1, 0.5, 0.9, 1, 0]) figures[`scroll to ${part * 100} %`] = await timed(page, scroll(part));
figures["sort by source"] = await timed(page, `[...document.querySelectorAll("[role=columnheader] button")].find((b) => b.textContent.startsWith("Resource")).click()`);
const steps = [];
for (let n = 0; n < 60; n++) steps.push(await timed(page, `document.querySelector("[role=grid]").scrollTop += 640`));
steps.sort((a, b) => a - b);
figures["scroll by 20 rows, median of 60"] = steps[30];
figures["scroll by 20 rows, longest of 60"] = steps[59];
await goTo(page, "nodes", ".rows .row");
figures["nodes: filter"] = await timed(page, type("node-12"));
for (const [name, ms] of Object.entries(figures)) console.log(`${name}: ${ms.toFixed(0)} ms`);
const memory = await page.evaluate(() => performance.memory?.usedJSHeapSize ?? 0);
console.log(`heap of the page: ${(memory / 2 ** 20).toFixed(0)} MiB`);
if (faults.length > 0) console.log(faults.slice(0, 5));
await browser.close();
