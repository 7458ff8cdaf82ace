// A network for the browser in which no interface comes or goes: at each such change of the machine it ends what is under
// way (ERR_NETWORK_CHANGED), and pods of other tests have interfaces. As root it has its own, whose loopback leads to the
// server through a socket in a folder.
import { rmSync } from "node:fs";
import { chmod, mkdtemp, writeFile } from "node:fs/promises";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Connects both ends; what one loses the other loses. */
function pipe(from, to) {
  from.pipe(to).pipe(from);
  from.on("error", () => to.destroy());
  to.on("error", () => from.destroy());
}

const RELAY = `
import net from "node:net";
${pipe.toString()}
net.createServer((from) => pipe(from, net.connect(process.argv[3]))).listen(Number(process.argv[2]), "127.0.0.1");
const browser = process.ppid;
setInterval(() => { if (process.ppid !== browser) process.exit(); }, 1000);
`;

/** The program that starts the browser so, for a server on the loopback; the browser itself for who is not root. */
export async function quiet(browser, server) {
  if (process.getuid() !== 0) return browser;
  const { hostname, port } = new URL(server);
  const folder = await mkdtemp(join(tmpdir(), "console-"));
  process.on("exit", () => rmSync(folder, { recursive: true, force: true }));
  const [socket, relay, program] = ["socket", "relay.mjs", "browser"].map((name) => join(folder, name));
  net.createServer((from) => pipe(from, net.connect(Number(port), hostname))).listen(socket).unref();
  await writeFile(relay, RELAY);
  const inside = `ip link set lo up && { '${process.execPath}' '${relay}' ${port} '${socket}' </dev/null >/dev/null 2>&1 3>&- 4>&- & exec '${browser}' "$@"; }`;
  await writeFile(program, `#!/bin/sh\nexec unshare --net -- sh -c ${JSON.stringify(inside).replaceAll("$", "\\$")} browser "$@"\n`);
  await chmod(program, 0o755);
  return program;
}
