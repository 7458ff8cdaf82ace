/** A program in a container, over WebSocket by the protocol v5.channel.k8s.io. */
import { sessionSignal, socketProtocols } from "./session";

const PROTOCOL = "v5.channel.k8s.io";
const [STDIN, STDOUT, STDERR, ERROR, RESIZE] = [0, 1, 2, 3, 4];
/** Input waits for the network up to here; what is typed beyond is dropped. */
const MOST_UNSENT = 1 << 20;

export interface Program {
  namespace: string;
  pod: string;
  container: string;
  command: string[];
}

export interface Ears {
  opened(): void;
  output(bytes: Uint8Array): void;
  /** It has ended: how, in words. */
  ended(how: string): void;
}

export class Exec {
  private socket: WebSocket;
  private how = "";
  private done = false;

  constructor(program: Program, ears: Ears) {
    const { namespace, pod, container, command } = program;
    const query = new URLSearchParams({ container, stdin: "true", stdout: "true", tty: "true" });
    for (const word of command) query.append("command", word);
    const path = `/api/v1/namespaces/${encodeURIComponent(namespace)}/pods/${encodeURIComponent(pod)}/exec?${query}`;
    this.socket = new WebSocket(`wss://${location.host}${path}`, socketProtocols(PROTOCOL));
    this.socket.binaryType = "arraybuffer";
    this.socket.onopen = () => ears.opened();
    this.socket.onmessage = (message: MessageEvent<ArrayBuffer>) => {
      const bytes = new Uint8Array(message.data);
      const channel = bytes[0];
      if (channel === STDOUT || channel === STDERR) ears.output(bytes.subarray(1));
      else if (channel === ERROR) this.how = ending(new TextDecoder().decode(bytes.subarray(1)));
    };
    this.socket.onclose = () => {
      if (this.done) return;
      this.done = true;
      ears.ended(this.how || "The connection was closed, or the server refused it.");
    };
    sessionSignal().addEventListener("abort", () => this.close(), { once: true });
  }

  private send(channel: number, bytes: Uint8Array): void {
    if (this.socket.readyState !== WebSocket.OPEN || this.socket.bufferedAmount > MOST_UNSENT) return;
    const message = new Uint8Array(bytes.length + 1);
    message[0] = channel;
    message.set(bytes, 1);
    this.socket.send(message);
  }

  type(text: string): void {
    this.send(STDIN!, new TextEncoder().encode(text));
  }

  resize(columns: number, rows: number): void {
    this.send(RESIZE!, new TextEncoder().encode(JSON.stringify({ Width: columns, Height: rows })));
  }

  close(): void {
    this.socket.close();
  }
}

interface Status {
  status?: string;
  message?: string;
  details?: { causes?: { reason?: string; message?: string }[] };
}

function ending(text: string): string {
  try {
    const status = JSON.parse(text) as Status;
    if (status.status === "Success") return "The program has ended.";
    const code = status.details?.causes?.find((c) => c.reason === "ExitCode")?.message;
    return code !== undefined ? `The program has ended with code ${code}.` : (status.message ?? "The program has ended.");
  } catch {
    return text.slice(0, 400);
  }
}
