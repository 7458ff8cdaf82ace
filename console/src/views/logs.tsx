/** The log of a container as it grows. Whatever stands in it is shown as text. */
import { useEffect, useRef, useState } from "preact/hooks";
import { lines } from "../api/collection";
import { open } from "../api/session";
import type { PodRow } from "../model/pods";
import { Choice } from "../ui/parts";

/** The last lines are kept, and of a line so much. */
const LINES = 5000;
const LENGTH = 4000;
const FIRST = 1000;
/** Of a line that a container never ends no more is read: what colours it goes before it is cut. */
const READ = 4 * LENGTH;

/** A line without the sequences that colour it on a terminal, and without other control characters. */
export function plain(line: string): string {
  // eslint-disable-next-line no-control-regex
  return line.replace(/\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])/g, "").replace(/[\x00-\x08\x0b-\x1f\x7f]/g, "").slice(0, LENGTH);
}

export function Logs({ pod }: { pod: PodRow }) {
  const [container, setContainer] = useState(pod.containers.find((c) => !c.init)?.name ?? "");
  const [previous, setPrevious] = useState(false);
  const [filter, setFilter] = useState("");
  const [state, setState] = useState("");
  const [again, setAgain] = useState(0);
  const box = useRef<HTMLPreElement>(null);
  const kept = useRef<string[]>([]);
  const needle = useRef("");
  needle.current = filter.toLowerCase();

  const fits = (line: string) => needle.current === "" || line.toLowerCase().includes(needle.current);
  const drawAll = () => {
    const element = box.current;
    if (!element) return;
    element.textContent = kept.current.filter(fits).join("\n");
    element.scrollTop = element.scrollHeight;
  };
  useEffect(drawAll, [filter]);
  useEffect(() => {
    const end = new AbortController();
    kept.current = [];
    drawAll();
    setState("Reading…");
    const query = new URLSearchParams({ container, tailLines: String(FIRST), ...(previous ? { previous: "true" } : { follow: "true" }) });
    const path = `/api/v1/namespaces/${encodeURIComponent(pod.namespace)}/pods/${encodeURIComponent(pod.name)}/log?${query}`;
    let fresh: string[] = [];
    const flush = () => {
      if (fresh.length === 0) return;
      const element = box.current;
      const atEnd = element ? element.scrollTop + element.clientHeight >= element.scrollHeight - 40 : true;
      kept.current.push(...fresh);
      const over = kept.current.length - LINES;
      if (over > 0) kept.current.splice(0, over);
      const shown = fresh.filter(fits);
      fresh = [];
      if (!element) return;
      if (over > 0) element.textContent = kept.current.filter(fits).join("\n");
      else if (shown.length > 0) element.append((element.hasChildNodes() && element.textContent !== "" ? "\n" : "") + shown.join("\n"));
      if (atEnd) element.scrollTop = element.scrollHeight;
    };
    const timer = setInterval(flush, 100);
    const follow = async () => {
      const response = await open(path, {}, end.signal);
      setState(previous ? "" : "Following");
      for await (const line of lines(response, READ)) {
        fresh.push(plain(line));
        if (fresh.length > LINES) fresh.shift();
      }
      setState("The log has ended");
    };
    follow().catch((error: unknown) => !end.signal.aborted && setState(error instanceof Error ? error.message : String(error)));
    return () => {
      clearInterval(timer);
      end.abort();
    };
  }, [pod.uid, container, previous, again]);

  return (
    <div class="logs">
      <div class="tools">
        <Choice label="Container" value={container} onChoose={setContainer} options={pod.containers.map((c) => ({ id: c.name, text: c.name }))} />
        <Choice label="Which run" value={previous ? "previous" : "now"} onChoose={(id) => setPrevious(id === "previous")} options={[{ id: "now", text: "This run" }, { id: "previous", text: "The one before" }]} />
        <label class="filter">
          <span class="hidden">Lines with</span>
          <input type="search" data-filter placeholder="Lines with…" value={filter} onInput={(event) => setFilter(event.currentTarget.value)} spellcheck={false} />
        </label>
        <span class="space" />
        <span class="muted" role="status">{state}</span>
        {state !== "Following" && state !== "Reading…" && <button type="button" onClick={() => setAgain(again + 1)}>Read again</button>}
      </div>
      <pre ref={box} class="text" role="log" aria-label={`Log of ${container}`} aria-live="off" tabIndex={0} />
    </div>
  );
}
