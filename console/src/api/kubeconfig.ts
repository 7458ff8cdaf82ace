/** What of a kubeconfig a web page can use: a token. Of everything else it says why not, and what to do. */

interface Config {
  "current-context"?: string;
  contexts?: { name?: string; context?: { cluster?: string; user?: string; namespace?: string } }[];
  clusters?: { name?: string; cluster?: { server?: string } }[];
  users?: { name?: string; user?: Record<string, unknown> }[];
}

/** What was found. */
export interface Found {
  token: string;
  namespace: string;
  /** What the user should know besides. */
  notes: string[];
}

/** How long a kubeconfig may be, in bytes. */
export const LIMIT = 1 << 20;

/**
 * Reads the current context's user.
 *
 * @throws what is wrong, in a sentence that says what to do.
 */
export async function readKubeconfig(text: string): Promise<Found> {
  const { load } = await import("./yaml.js" as string) as typeof import("../yaml");
  let config: Config | null;
  try {
    config = load(text) as Config | null;
  } catch (error) {
    throw new Error(`This is no YAML: ${error instanceof Error ? error.message.split("\n")[0] : "it cannot be read"}`);
  }
  if (config === null || typeof config !== "object" || !Array.isArray(config.users)) {
    throw new Error("This is no kubeconfig: it has no list of users.");
  }
  const contexts = Array.isArray(config.contexts) ? config.contexts : [];
  const context = contexts.find((c) => c.name === config["current-context"])?.context;
  if (!context) throw new Error("The kubeconfig names no current context (current-context).");
  const found = config.users.find((u) => u.name === context.user)?.user;
  if (!found) throw new Error(`The kubeconfig has no user ${context.user ?? ""}.`);
  const clusters = Array.isArray(config.clusters) ? config.clusters : [];
  const server = clusters.find((c) => c.name === context.cluster)?.cluster?.server ?? "";
  const notes: string[] = [];
  if (server !== "" && new URL(server, location.href).host !== location.host) {
    notes.push(`The kubeconfig is for ${server}; this page talks to ${location.origin} only.`);
  }
  if (typeof found["token"] === "string" && found["token"] !== "") {
    return { token: found["token"], namespace: context.namespace ?? "", notes };
  }
  throw new Error(whyNot(found));
}

function whyNot(user: Record<string, unknown>): string {
  if ("client-certificate-data" in user || "client-certificate" in user) {
    return (
      "This kubeconfig has a client certificate. A web page cannot show a certificate from a file: only the browser can. " +
      "Import it there (docs/console.md has the command that makes a .p12 file of it), open this page again, and choose it when the browser asks."
    );
  }
  if ("exec" in user) {
    return "This kubeconfig gets its credential from a program, which a web page cannot start. Run the program and paste the token that it prints.";
  }
  if ("tokenFile" in user) return "This kubeconfig names a file with the token, which a web page cannot open. Paste what is in the file.";
  if ("auth-provider" in user) return "This kubeconfig uses an auth provider, which a web page cannot run. Paste a token instead.";
  if ("username" in user) return "This kubeconfig has a name and a password, which Kubernetes no longer takes.";
  return "The user of this kubeconfig has no credential.";
}
