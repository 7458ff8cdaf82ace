/**
 * Who is logged in, and calls on the API in that name.
 *
 * The token is a variable of this module and stands nowhere else: not in the address, not in a cookie, not in the
 * browser's storage. It goes when the page goes.
 */
import { computed, signal } from "@preact/signals";

export type Credential = "token" | "certificate";

export interface User {
  name: string;
  groups: string[];
  by: Credential;
}

/** An answer that is no success, in the server's words. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly reason: string,
    message: string,
  ) {
    super(message);
  }
}

const REVIEW = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
export const DEADLINE = 30_000;

let token = "";
let life = new AbortController();

/** Who is logged in; null while nobody is. */
export const user = signal<User | null>(null);
/** Why the last session ended, to be said on the login page. */
export const farewell = signal("");
/** The namespace that is looked at; empty for all. */
export const namespace = signal("");
export const isLoggedIn = computed(() => user.value !== null);

/** What is to be done when a session ends. */
const endings: (() => void)[] = [];
export function atEnd(action: () => void): void {
  endings.push(action);
}

/** Ends with the session. */
export function sessionSignal(): AbortSignal {
  return life.signal;
}

/** The subprotocols by which a WebSocket carries the credential; a URL never does. */
export function socketProtocols(protocol: string): string[] {
  if (token === "") return [protocol];
  const bytes = new TextEncoder().encode(token);
  const text = btoa(String.fromCharCode(...bytes));
  const url = text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  return [protocol, `base64url.bearer.authorization.k8s.io.${url}`];
}

async function failure(response: Response): Promise<ApiError> {
  const text = (await response.text()).slice(0, 4096);
  try {
    const status = JSON.parse(text) as { message?: string; reason?: string };
    const message = status.message ?? `the server answered ${response.status}`;
    return new ApiError(response.status, status.reason ?? "", message);
  } catch {
    return new ApiError(response.status, "", text.trim() || `the server answered ${response.status}`);
  }
}

function headersFor(bearer: string, extra: HeadersInit | undefined): Headers {
  const headers = new Headers(extra);
  if (bearer !== "") headers.set("Authorization", `Bearer ${bearer}`);
  return headers;
}

/**
 * Asks once more, and once more, where a question that only reads did not reach the server: browsers give up all that is
 * under way when a network device of their machine comes or goes, which on a node of the cluster each pod does.
 */
async function reach(path: string, init: RequestInit): Promise<Response> {
  for (let left = init.method === undefined ? 3 : 0; ; left--) {
    try {
      return await fetch(path, init);
    } catch (error) {
      if (left === 0 || init.signal?.aborted) throw error;
      await new Promise((resolve) => setTimeout(resolve, 150 * (4 - left)));
    }
  }
}

/** Calls the API; the answer's body is still to be read. It is cut off when `end` says so, and when the session ends. */
export async function open(path: string, init: RequestInit = {}, end?: AbortSignal): Promise<Response> {
  const signal = AbortSignal.any([life.signal, ...(end ? [end] : [])]);
  const response = await reach(path, { ...init, headers: headersFor(token, init.headers), signal, redirect: "error", cache: "no-store" });
  if (response.status === 401 && user.value !== null) {
    logOut("The server no longer takes this credential. Log in again.");
    throw new ApiError(401, "Unauthorized", "the session has ended");
  }
  if (!response.ok) throw await failure(response);
  return response;
}

/** Reads a document of the API. */
export async function read<T>(path: string, end?: AbortSignal): Promise<T> {
  const signals = [AbortSignal.timeout(DEADLINE), ...(end ? [end] : [])];
  const response = await open(path, { headers: { Accept: "application/json" } }, AbortSignal.any(signals));
  return (await response.json()) as T;
}

/** Sends a document to the API and reads the answer. */
export async function send<T>(path: string, body: unknown): Promise<T> {
  const init = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const response = await open(path, init, AbortSignal.timeout(DEADLINE));
  return (await response.json()) as T;
}

interface Review {
  status?: { userInfo?: { username?: string; groups?: string[] } };
}

/** Whom a credential names, asked of the server; without a token, whom the browser's certificate names. */
async function review(bearer: string): Promise<User | null> {
  const headers = headersFor(bearer, { "Content-Type": "application/json" });
  const body = JSON.stringify({ apiVersion: "authentication.k8s.io/v1", kind: "SelfSubjectReview" });
  const signal = AbortSignal.timeout(DEADLINE);
  const response = await fetch(REVIEW, { method: "POST", headers, body, signal, redirect: "error", cache: "no-store" });
  if (response.status === 401 || (response.status === 403 && bearer === "")) return null;
  if (!response.ok) throw await failure(response);
  const info = ((await response.json()) as Review).status?.userInfo;
  const name = info?.username ?? "";
  if (name === "" || name === "system:anonymous") return null;
  return { name, groups: info?.groups ?? [], by: bearer === "" ? "certificate" : "token" };
}

/** Whom the certificate names that the browser shows; null if it shows none. */
export function certificateUser(): Promise<User | null> {
  return review("");
}

function begin(found: User): void {
  life = new AbortController();
  farewell.value = "";
  const account = /^system:serviceaccount:([^:]+):/.exec(found.name);
  homeNamespace = account?.[1] ?? "default";
  user.value = found;
}

/** The namespace to look at for somebody who may not look at all of them. */
let homeNamespace = "default";
export function home(): string {
  return homeNamespace;
}

/** Logs in by a token. Says what is wrong with it, if anything. */
export async function logInByToken(text: string): Promise<void> {
  const bearer = text.trim();
  if (bearer === "") throw new Error("Paste a token first.");
  if (/[^\x21-\x7e]/.test(bearer)) throw new Error("This is no token: it has blanks or letters that no token has.");
  const found = await review(bearer);
  if (found === null) throw new Error("The server does not know this token, or it is no longer good.");
  token = bearer;
  begin(found);
}

/** Logs in as whom the browser's certificate names. */
export function logInByCertificate(found: User): void {
  token = "";
  begin(found);
}

/** Forgets the credential and all that was read by it. */
export function logOut(why = ""): void {
  token = "";
  life.abort();
  for (const action of endings) action();
  namespace.value = "";
  farewell.value = why;
  user.value = null;
}

interface AccessReview {
  status?: { allowed?: boolean; reason?: string };
}

/** Whether the user may do something, as the server's authorization says. */
export async function may(verb: string, resource: string, where: { namespace?: string; name?: string; subresource?: string; group?: string }): Promise<boolean> {
  const answer = await send<AccessReview>("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {
    apiVersion: "authorization.k8s.io/v1",
    kind: "SelfSubjectAccessReview",
    spec: { resourceAttributes: { verb, resource, ...where } },
  });
  return answer.status?.allowed === true;
}
