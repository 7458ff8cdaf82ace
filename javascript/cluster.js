// A cluster that runs.

import { spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { once } from 'node:events'
import { setTimeout as wait } from 'node:timers/promises'

import { Administrator } from './administrator.js'
import { Log } from './log.js'
import { checked, command, program } from './program.js'

/** Milliseconds that a cluster may take to start on a busy machine. */
const START_LIMIT = 60_000
/** Milliseconds that it may take to stop: its containers may have to be ended. */
const STOP_LIMIT = 30_000
/** More characters than the line that says that a cluster is ready has. */
const LINE_LIMIT = 64 << 10

export class StartError extends Error {
  name = 'StartError'
}

/** The first line that a process writes, or what there is of it when it ends. What follows is read by nobody. */
function firstLine(stdout) {
  return new Promise((resolve) => {
    let text = ''
    const done = () => {
      stdout.off('data', take).resume()
      resolve(text.split('\n', 1)[0])
    }
    const take = (part) => {
      text += part
      if (text.includes('\n') || text.length > LINE_LIMIT) done()
    }
    stdout.setEncoding('utf8').on('end', done).on('error', done).on('data', take)
  })
}

/** Reads "ready in 31 ms  kubeconfig=FILE  server=URL". */
export function parse(line) {
  const [, kubeconfig, url] = /^ready in .*?  kubeconfig=(.*)  server=(.*)$/.exec(line) ?? []
  return url && { kubeconfig, url }
}

export class Cluster {
  #process
  #ended // how it did: a sentence, empty if well
  #stopped
  #log
  #stopLimit
  #administrator

  /** @hidden Clusters are made by `Cluster.start`. */
  constructor(child, log, stopLimit) {
    this.#process = child
    this.#log = log
    this.#stopLimit = stopLimit
    this.#ended = once(child, 'exit').then(([code, signal]) => (code === 0 ? '' : `ended with ${signal ?? `code ${code}`}`))
  }

  static start(options = {}) {
    const place = ['--ephemeral']
    if (options.template) place.push('--template', options.template.dataDir)
    return Cluster.launch(options, place)
  }

  /** @hidden */
  static async launch(options, place) {
    const binary = program(checked(options))
    if (!binary) throw new StartError('no davit was found beside the package or in PATH; DAVIT_BINARY=FILE names one')
    const { line, done } = command(options, place)
    try {
      return await Cluster.#launch(binary, line, options)
    } finally {
      done()
    }
  }

  static async #launch(binary, line, options) {
    const log = new Log(options.name ?? 'cluster')
    const child = spawn(binary, line, { stdio: ['ignore', 'pipe', log.file] })
    try {
      await once(child, 'spawn')
    } catch (error) {
      log.drop()
      throw new StartError(`cannot start ${binary}: ${error.message}`, { cause: error })
    }
    const cluster = new Cluster(child, log, options.stopTimeout ?? STOP_LIMIT)
    const limit = options.startTimeout ?? START_LIMIT
    const timer = new AbortController()
    const late = wait(limit, '', { signal: timer.signal }).catch(() => '')
    const ready = parse(await Promise.race([firstLine(child.stdout), late]))
    timer.abort()
    if (!ready) {
      // First, so that the log is whole. That it ends with an error is why we are here.
      await cluster.#terminate()
      const tail = log.tail()
      log.drop()
      throw new StartError(`davit did not become ready within ${limit} ms; its log:\n${tail}`)
    }
    Object.assign(cluster, ready)
    cluster.#administrator = new Administrator(ready.url, readFileSync(ready.kubeconfig, 'utf8'))
    // A program that has nothing else to do ends, and the cluster with it.
    child.unref()
    child.stdout.unref()
    return cluster
  }

  get processId() {
    return this.#process.pid
  }

  request(method, path, body) {
    return this.#administrator.request(method, path, body)
  }

  stop({ keepLog = false } = {}) {
    this.#stopped ??= this.#finish(keepLog)
    return this.#stopped
  }

  async #finish(keepLog) {
    this.#administrator.close()
    const fault = await this.#terminate()
    if (!fault && !keepLog) {
      this.#log.drop()
      return undefined
    }
    const tail = this.#log.tail()
    const path = this.#log.keep()
    if (fault) throw new Error(`davit ${fault}; its log, ${path}:\n${tail}`)
    return { path, tail }
  }

  /** Ends the process; what is wrong with how it did. */
  async #terminate() {
    this.#process.ref()
    this.#process.kill('SIGTERM')
    const timer = new AbortController()
    const late = wait(this.#stopLimit, undefined, { signal: timer.signal }).catch(() => undefined)
    let ended = await Promise.race([this.#ended, late])
    timer.abort()
    if (ended === undefined) {
      this.#process.kill('SIGKILL')
      await this.#ended
      ended = `did not stop within ${this.#stopLimit} ms and was killed`
    }
    // A monitor of a container may hold the other end.
    this.#process.stdout.destroy()
    return ended
  }

  async [Symbol.asyncDispose]() {
    await this.stop()
  }
}
