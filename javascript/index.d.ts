/// <reference lib="esnext.disposable" />

/** There is no davit, or it did not become ready; the text ends with what it wrote. */
export class StartError extends Error {}

/** What a cluster is to have. By default it is the control plane: API server, scheduler and controllers. */
export interface Options {
  /** The program, instead of the one that is found: by `DAVIT_BINARY`, beside the package, or in `PATH`. */
  binary?: string
  /** Leaves scheduler and controllers out. */
  apiServerOnly?: boolean
  /** Adds a node that runs containers. It needs root. */
  node?: boolean
  /** Adds so many real node agents with devices, whose containers run nothing. They need no privileges. */
  simulatedNodes?: number
  /** An inventory of simulated devices and their faults (YAML, docs/lab.md), which all nodes have. */
  devices?: string
  /** A prepared cluster: this one begins as a copy of it. */
  template?: Template
  /** Further flags of `davit up`. */
  flags?: readonly string[]
  /** Milliseconds that the cluster may take to start; a minute unless told otherwise. */
  startTimeout?: number
  /** Milliseconds that it may take to stop before it is killed; half a minute unless told otherwise. */
  stopTimeout?: number
  /** Stands in the name of the log. */
  name?: string
}

/** The answer to a request. */
export interface Answer {
  /** The code of HTTP. */
  status: number
  /** What was sent: of JSON what it says, otherwise the text. */
  body: any
}

/** A log that was kept. */
export interface KeptLog {
  path: string
  /** Its last lines. */
  tail: string
}

/** A cluster that runs until it is stopped, or until this program ends, however it does. */
export class Cluster {
  private constructor()
  /** Starts a cluster and waits until it is ready. Fails with `StartError`. */
  static start(options?: Options): Promise<Cluster>
  /** The file of the administrator's kubeconfig. */
  readonly kubeconfig: string
  /** Where the API server is: `https://127.0.0.1:PORT`. */
  readonly url: string
  /** The number of davit's process. */
  readonly processId: number
  /** Asks the API server, as the administrator; `body` is sent as JSON, with `PATCH` as a merge patch. */
  request(method: string, path: string, body?: unknown): Promise<Answer>
  /**
   * Stops the cluster and waits until nothing of it is left. It may be called again. The log is kept, below `DAVIT_TEST_LOGS` if
   * that is set, if that is asked for or the cluster does not end well, which is an error.
   */
  stop(options?: { keepLog?: boolean }): Promise<KeptLog | undefined>
  [Symbol.asyncDispose](): Promise<void>
}

/**
 * The objects of a cluster that was prepared once. What takes long to make (definitions, charts, thousands of objects) is there
 * in each copy from its first moment.
 */
export class Template {
  private constructor()
  /** Starts a cluster with these options, has `prepare` make what the copies are to have, and stops it. */
  static prepare(options: Options, prepare: (cluster: Cluster) => unknown): Promise<Template>
  /** A cluster that begins as a copy. */
  start(options?: Omit<Options, 'template'>): Promise<Cluster>
  /** Removes the template. Copies that run go on. */
  remove(): void
  [Symbol.dispose](): void
}

/** A test of `node:test`, as far as it is needed. */
export interface TestContext {
  readonly name: string
  readonly error?: unknown
  after(hook: () => Promise<void>): void
  diagnostic(message: string): void
}

/**
 * A cluster that ends with the test. If the test fails, the end of davit's log is shown and the whole of it kept, below
 * `DAVIT_TEST_LOGS` if that is set.
 */
export function start(t: TestContext, options?: Options): Promise<Cluster>
