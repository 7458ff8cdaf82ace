// A browser on a console, and the API beside it. CHROMIUM names the browser; CONSOLE_URL the server.
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import https from "node:https";
import { chromium } from "playwright-core";
import { quiet } from "./quiet.mjs";

export const server = process.env.CONSOLE_URL.replace(/\/$/, "");
const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** Calls the API; the server's certificate is one that it made itself. */
export function api(token, method, path, body) {
  const type = method === "PATCH" ? "application/merge-patch+json" : "application/json";
  const options = { method, rejectUnauthorized: false, headers: { authorization: `Bearer ${token}`, "content-type": type } };
  return new Promise((resolve, reject) => {
    const request = https.request(server + path, options, (response) => {
      let text = "";
      response.setEncoding("utf8");
      response.on("data", (part) => (text += part));
      response.on("end", () => {
        if (response.statusCode >= 300) reject(new Error(`${method} ${path}: ${response.statusCode} ${text}`));
        else resolve(JSON.parse(text));
      });
    });
    request.on("error", reject);
    request.end(body === undefined ? undefined : JSON.stringify(body));
  });
}

/** A browser; one that shows client certificates has the machine's network, where Playwright has a proxy for them. */
export async function launch({ showsCertificates = false } = {}) {
  const plain = process.env.CHROMIUM ?? "/usr/bin/chromium";
  const executablePath = showsCertificates ? plain : await quiet(plain, server);
  // as root a browser has no sandbox of its own; the pages are ours
  return chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-dev-shm-usage", ...(process.env.CONSOLE_FILES ? ["--disable-features=LocalNetworkAccessChecks"] : [])] });
}

/** A page at the console that notes what may never happen. */
export async function open(browser, options = {}) {
  const context = await browser.newContext({ ignoreHTTPSErrors: true, viewport: { width: 1440, height: 900 }, ...options });
  const page = await context.newPage();
  const faults = [];
  await context.exposeFunction("reportViolation", (text) => faults.push(text));
  await page.addInitScript(() => {
    document.addEventListener("securitypolicyviolation", (e) => window.reportViolation(`CSP: ${e.violatedDirective} ${e.blockedURI} ${e.sample}`));
  });
  page.on("pageerror", (error) => faults.push(`error in the page: ${error.stack}`));
  page.on("dialog", (dialog) => {
    faults.push(`a dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on("request", (request) => {
    const url = new URL(request.url());
    if (url.origin !== server && url.protocol !== "data:") faults.push(`asked ${url.origin}`);
    if (/token-/.test(request.url())) faults.push(`a secret in ${url}`);
  });
  page.on("websocket", (socket) => {
    if (/token-/.test(socket.url())) faults.push(`a secret in ${socket.url()}`);
  });
  if (process.env.CONSOLE_FILES) await fromFolder(page, process.env.CONSOLE_FILES);
  await goHere(page);
  return { context, page, faults };
}

/** Goes to the console, again where an interface of the machine has come or gone meanwhile. */
async function goHere(page) {
  for (let left = 20; ; left--) {
    try {
      await page.goto(`${server}/console`);
      return;
    } catch (error) {
      if (left === 0 || !/ERR_NETWORK_CHANGED/.test(String(error))) throw error;
      await page.waitForTimeout(250);
    }
  }
}

/** For work on the page: the files of a folder in place of those that the binary has. */
async function fromFolder(page, folder) {
  const types = { html: "text/html; charset=utf-8", js: "text/javascript", css: "text/css", svg: "image/svg+xml" };
  const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; require-trusted-types-for 'script'; trusted-types 'none'";
  await page.route(/\/console(\/.*)?$/, async (route) => {
    const name = new URL(route.request().url()).pathname.replace(/^\/console\/?/, "") || "index.html";
    const headers = { "content-type": types[name.split(".").pop()], "content-security-policy": policy };
    await route.fulfill({ body: await readFile(`${folder}/${name}`), headers });
  });
}

export async function logIn(page, token) {
  await page.fill("#token", token);
  await page.click("form button.primary");
  await page.waitForSelector(".rail");
}

export async function goTo(page, place, ready) {
  await page.evaluate((hash) => (location.hash = hash), `#/${place}`);
  await page.waitForSelector(ready, { timeout: 15_000 });
}

/** What axe finds wrong, in lines. */
export async function inaccessible(page) {
  await page.evaluate(axe);
  const found = await page.evaluate(() => window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }));
  return found.violations.flatMap((v) => v.nodes.slice(0, 3).map((n) => `${v.id}: ${n.html.slice(0, 160)} ${n.failureSummary.split("\n").slice(1).join(" ").slice(0, 240)}`));
}
