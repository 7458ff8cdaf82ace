/** A terminal in a container. */
import { useEffect, useRef, useState } from "preact/hooks";
import { Exec } from "../api/exec";
import type { PodRow } from "../model/pods";
import { Screen, type Line } from "../terminal/screen";
import { colour, type Style } from "../terminal/style";
import { keyText } from "../terminal/keys";
import { Choice } from "../ui/parts";

const SHELL = "sh";

function dress(element: HTMLElement, style: Style, cursor: boolean): void {
  let { fg, bg } = style;
  if (style.inverse) [fg, bg] = [bg ?? -1, fg ?? -2];
  const names = [style.bold && "bold", style.faint && "faint", style.italic && "italic", style.underline && "underline", cursor && "cursor"];
  if (fg === -1) names.push("ground-text");
  else if (fg !== null && fg < 16) names.push(`f${fg}`);
  else if (fg !== null) element.style.color = colour(fg);
  if (bg === -2) names.push("text-ground");
  else if (bg !== null && bg < 16) names.push(`b${bg}`);
  else if (bg !== null) element.style.backgroundColor = colour(bg);
  element.className = names.filter(Boolean).join(" ");
}

/** A line as elements; every character becomes text. */
function lineElement(line: Line, cursor: number): HTMLDivElement {
  const element = document.createElement("div");
  let from = 0;
  while (from < line.length) {
    const { style } = line[from]!;
    let to = from + 1;
    while (to < line.length && line[to]!.style === style && to !== cursor && from !== cursor) to++;
    const run = document.createElement("span");
    run.textContent = line.slice(from, to).map((cell) => cell.text).join("");
    dress(run, style, from === cursor);
    element.append(run);
    from = to;
  }
  return element;
}

class View {
  private pending = false;
  private drawnHistory = 0;
  private firstHistory: Line | undefined;

  constructor(
    private readonly box: HTMLElement,
    private readonly past: HTMLElement,
    private readonly present: HTMLElement,
    private readonly screen: Screen,
  ) {}

  draw(): void {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.now();
    });
  }

  private now(): void {
    const { screen, box } = this;
    const atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 30;
    const { history } = screen;
    const grew = history.length >= this.drawnHistory && history[0] === this.firstHistory;
    if (grew) this.past.append(...history.slice(this.drawnHistory).map((line) => lineElement(line, -1)));
    else this.past.replaceChildren(...history.map((line) => lineElement(line, -1)));
    this.drawnHistory = history.length;
    this.firstHistory = history[0];
    this.past.hidden = screen.alternate;
    const { x, y } = screen.cursor;
    this.present.replaceChildren(...screen.lines.map((line, at) => lineElement(line, at === y && screen.cursorVisible ? x : -1)));
    if (atEnd) box.scrollTop = box.scrollHeight;
  }
}

export function Shell({ pod }: { pod: PodRow }) {
  const running = pod.containers.filter((c) => c.state === "running");
  const [container, setContainer] = useState(running.find((c) => !c.init)?.name ?? running[0]?.name ?? "");
  const [command, setCommand] = useState(SHELL);
  const [run, setRun] = useState(0);
  const [state, setState] = useState("");
  const box = useRef<HTMLDivElement>(null);
  const past = useRef<HTMLDivElement>(null);
  const present = useRef<HTMLDivElement>(null);
  const ruler = useRef<HTMLSpanElement>(null);
  const input = useRef<HTMLTextAreaElement>(null);

  useEffect(() => {
    if (run === 0 || container === "") return;
    setState("Connecting…");
    let exec: Exec | null = null;
    // the elements stay these until this ends, whatever comes in their place meanwhile
    const [around, sample, field] = [box.current!, ruler.current!, input.current!];
    const measure = () => {
      const cell = sample.getBoundingClientRect();
      const columns = Math.floor((around.clientWidth - 22) / (cell.width / 10 || 1));
      const rows = Math.floor((around.clientHeight - 16) / (cell.height || 1));
      return { columns: Math.max(20, Math.min(400, columns)), rows: Math.max(5, Math.min(200, rows)) };
    };
    const size = measure();
    const screen = new Screen(size.columns, size.rows, (text) => exec?.type(text));
    const view = new View(around, past.current!, present.current!, screen);
    past.current!.replaceChildren();
    const decoder = new TextDecoder();
    exec = new Exec({ namespace: pod.namespace, pod: pod.name, container, command: command.split(/\s+/).filter((word) => word !== "") }, {
      opened: () => {
        setState("Connected");
        exec?.resize(screen.columns, screen.rows);
        field.focus();
      },
      output: (bytes) => {
        screen.write(decoder.decode(bytes, { stream: true }));
        view.draw();
      },
      ended: (how) => setState(how),
    });
    const sizes = new ResizeObserver(() => {
      const { columns, rows } = measure();
      if (columns === screen.columns && rows === screen.rows) return;
      screen.resize(columns, rows);
      exec?.resize(columns, rows);
      view.draw();
    });
    sizes.observe(around);
    const onKey = (event: KeyboardEvent) => {
      if (event.key === "Escape" && event.shiftKey) {
        event.preventDefault();
        event.stopPropagation();
        return document.querySelector<HTMLElement>(".tools button")?.focus();
      }
      const text = keyText(event, screen);
      if (text === null) return;
      event.preventDefault();
      event.stopPropagation();
      exec?.type(text);
      around.scrollTop = around.scrollHeight;
    };
    const onInput = (event: Event) => {
      if ((event as InputEvent).isComposing) return;
      exec?.type(field.value);
      field.value = "";
    };
    const onPaste = (event: ClipboardEvent) => {
      event.preventDefault();
      // what is pasted cannot end the paste and go on as keys
      const text = (event.clipboardData?.getData("text/plain") ?? "").replaceAll("\x1b", "").replace(/\r?\n/g, "\r");
      exec?.type(screen.bracketedPaste ? `\x1b[200~${text}\x1b[201~` : text);
    };
    field.addEventListener("keydown", onKey);
    field.addEventListener("input", onInput);
    field.addEventListener("compositionend", onInput);
    field.addEventListener("paste", onPaste);
    view.draw();
    return () => {
      field.removeEventListener("keydown", onKey);
      field.removeEventListener("input", onInput);
      field.removeEventListener("compositionend", onInput);
      field.removeEventListener("paste", onPaste);
      sizes.disconnect();
      exec?.close();
    };
  }, [run]);

  if (running.length === 0) return <p class="nothing">No container of this pod runs.</p>;
  return (
    <div class="shell">
      <form class="tools" onSubmit={(event) => { event.preventDefault(); setRun(run + 1); }}>
        <Choice label="Container" value={container} onChoose={setContainer} options={running.map((c) => ({ id: c.name, text: c.name }))} />
        <label class="command">Program <input type="text" value={command} onInput={(event) => setCommand(event.currentTarget.value)} spellcheck={false} autocomplete="off" required /></label>
        <button type="submit" class="primary">{run === 0 ? "Open" : "Open again"}</button>
        <span class="space" />
        <span class="muted" role="status">{state}</span>
      </form>
      <div class="terminal" ref={box} role="group" aria-label="Terminal" onMouseUp={() => getSelection()?.isCollapsed !== false && input.current?.focus()}>
        <span ref={ruler} class="ruler" aria-hidden="true">MMMMMMMMMM</span>
        <div ref={past} class="past" />
        <div ref={present} class="present" role="log" aria-live="off" />
        <textarea ref={input} class="input" rows={1} aria-label="Terminal input. Shift and Escape leave it." autocapitalize="off" autocomplete="off" spellcheck={false} />
      </div>
      <p class="muted small">Shift+Esc leaves the terminal. Ctrl+Shift+C copies, Ctrl+Shift+V pastes.</p>
    </div>
  );
}
