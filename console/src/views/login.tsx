/** The page of those who are not logged in. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { LIMIT, readKubeconfig } from "../api/kubeconfig";
import { certificateUser, farewell, logInByCertificate, logInByToken, namespace, type User } from "../api/session";
import { Wordmark } from "./frame";

function text(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

export function Login() {
  const [busy, setBusy] = useState(false);
  const [fault, setFault] = useState("");
  const [notes, setNotes] = useState<string[]>([]);
  const [known, setKnown] = useState<User | null | "asking">("asking");
  const field = useRef<HTMLInputElement>(null);

  useEffect(() => {
    document.title = "Log in · davit";
    field.current?.focus();
    certificateUser().then(setKnown, () => setKnown(null));
  }, []);

  const attempt = async (action: () => Promise<void>) => {
    setBusy(true);
    setFault("");
    try {
      await action();
    } catch (error) {
      setFault(text(error));
      setBusy(false);
    }
  };
  const byToken = (event: Event) => {
    event.preventDefault();
    const given = field.current!.value;
    void attempt(async () => {
      await logInByToken(given);
      if (field.current) field.current.value = "";
    });
  };
  const byFile = (file: File | undefined) => {
    if (!file) return;
    setNotes([]);
    void attempt(async () => {
      if (file.size > LIMIT) throw new Error("This file is too long for a kubeconfig.");
      const found = await readKubeconfig(await file.text());
      setNotes(found.notes);
      await logInByToken(found.token);
      namespace.value = found.namespace;
    });
  };
  return (
    <main class="login">
      <div class="card">
        <Wordmark />
        <h1>Log in to this cluster</h1>
        {farewell.value !== "" && <p class="note" role="status">{farewell.value}</p>}
        <form onSubmit={byToken}>
          <label for="token">Bearer token</label>
          <input ref={field} id="token" type="password" name="token" autocomplete="off" spellcheck={false} aria-describedby="token-help" />
          <p id="token-help" class="help">Kept in this page's memory only. It is gone when the page is closed or loaded again.</p>
          <button type="submit" class="primary" disabled={busy}>{busy ? "Asking the server…" : "Log in"}</button>
        </form>
        <Or />
        <div class="other">
          <label for="kubeconfig">Kubeconfig with a token</label>
          <input id="kubeconfig" type="file" disabled={busy} onChange={(event) => { byFile(event.currentTarget.files?.[0]); event.currentTarget.value = ""; }} />
          <p class="help">Read here and sent nowhere. The token of its current context is used.</p>
        </div>
        <Or />
        <Certificate known={known} onUse={logInByCertificate} />
        {notes.map((note) => <p key={note} class="note" role="status">{note}</p>)}
        <p class="fault" role="alert">{fault}</p>
      </div>
    </main>
  );
}

function Or(): ComponentChildren {
  return <div class="or" role="separator"><span>or</span></div>;
}

function Certificate({ known, onUse }: { known: User | null | "asking"; onUse: (user: User) => void }) {
  if (known === "asking") return <p class="help">Looking whether the browser shows a certificate…</p>;
  if (known === null) {
    return (
      <div class="other">
        <strong>Client certificate</strong>
        <p class="help">The browser shows none. A page cannot read one from a file: import it into the browser as a .p12 file, open this page again, and choose it when the browser asks.</p>
      </div>
    );
  }
  return (
    <div class="other">
      <strong>Client certificate</strong>
      <button type="button" onClick={() => onUse(known)}>Continue as {known.name}</button>
    </div>
  );
}
