// What the page takes for a node's table of devices. `npm test`.
import assert from "node:assert/strict";
import { test } from "node:test";
import { build } from "esbuild";

const bundled = await build({ entryPoints: ["src/model/table.ts"], bundle: true, format: "esm", write: false });
const { tableOf } = await import(`data:text/javascript;base64,${Buffer.from(bundled.outputFiles[0].text).toString("base64")}`);

const device = { resource: "x.example/foo", id: "foo-0", health: "Healthy", numaNodes: [0], holders: [{ namespace: "n", pod: "p", uid: "u", container: "c" }] };
const table = { node: "a", generation: 1, devices: [device], held: [{ ...device, resource: "cpu", id: "0-3" }], numa: [{ id: 0, cpus: "0-7", memory: 1024 }], empty: ["x.example/none"] };

test("a table is one", () => {
  const read = tableOf("a", table);
  assert.equal(read.devices[0].holders[0].pod, "p");
  assert.deepEqual(read.devices[0].numaNodes, [0]);
  assert.equal(read.held[0].id, "0-3");
  assert.deepEqual([read.numa[0].cpus, read.empty[0]], ["0-7", "x.example/none"]);
  assert.deepEqual(tableOf("a", { node: "a", generation: 0, devices: [] }).devices, []);
});

test("a node tells its own devices, whatever name it gives itself", () => {
  assert.equal(tableOf("a", { ...table, node: "b" }).node, "a");
});

test("what is no table is refused, and not shown by pieces", () => {
  const strange = [
    null, 5, "<html>", [], {}, { generation: 1 }, { generation: 1, devices: {} }, { generation: "1", devices: [] },
    ...[null, 5, { id: {} }, { numaNodes: "0" }, { numaNodes: [null] }, { holders: 5 }, { holders: [null] }, { holders: [{ pod: [] }] }, { health: {} }]
      .map((one) => ({ generation: 1, devices: [one] })),
    { ...table, held: [5] }, { ...table, numa: [{}] }, { ...table, numa: [{ id: 0, cpus: 5, memory: 1 }] }, { ...table, empty: [{}] }, { ...table, held: {} },
    { generation: 1, devices: Array(100_000).fill(device) }, { ...table, numa: Array(2000).fill(table.numa[0]) },
  ];
  for (const told of strange) assert.throws(() => tableOf("a", told), /in a form that is not known/, JSON.stringify(told)?.slice(0, 80));
});

test("names have a length", () => {
  const read = tableOf("a", { ...table, devices: [{ ...device, id: "x".repeat(1 << 20) }] });
  assert.equal(read.devices[0].id.length, 1024);
});
