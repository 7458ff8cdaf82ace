/** An object as the API has it, in YAML. It is shown as text. */
import { useEffect, useState } from "preact/hooks";
import { read } from "../api/session";

export function ObjectText({ path }: { path: string }) {
  const [text, setText] = useState("Reading…");
  const [again, setAgain] = useState(0);
  useEffect(() => {
    const end = new AbortController();
    const show = async () => {
      const [object, yaml] = await Promise.all([
        read<{ metadata?: Record<string, unknown> }>(path, end.signal),
        import("./yaml.js" as string) as Promise<typeof import("../yaml")>,
      ]);
      delete object.metadata?.["managedFields"];
      setText(yaml.dump(object, { lineWidth: 120, noRefs: true }));
    };
    show().catch((error: unknown) => !end.signal.aborted && setText(error instanceof Error ? error.message : String(error)));
    return () => end.abort();
  }, [path, again]);
  return (
    <div class="object">
      <div class="tools"><span class="muted">As it was when it was read, without managedFields.</span><button type="button" onClick={() => setAgain(again + 1)}>Read again</button></div>
      <pre class="text" tabIndex={0} aria-label="Object in YAML">{text}</pre>
    </div>
  );
}
