// A prepared cluster that others begin as copies of.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

import { Cluster } from './cluster.js'

export class Template {
  #dir

  /** @hidden Templates are made by `Template.prepare`. */
  constructor() {
    this.#dir = mkdtempSync(join(tmpdir(), 'davit-template-'))
  }

  static async prepare(options, prepare) {
    if (options.node) throw new TypeError('a template has no node of its own: containers cannot be copied')
    const template = new Template()
    try {
      const cluster = await Cluster.launch(options, ['--data-dir', template.dataDir, '--port', '0'])
      try {
        await prepare(cluster)
      } finally {
        await cluster.stop()
      }
    } catch (error) {
      template.remove()
      throw error
    }
    return template
  }

  get dataDir() {
    return join(this.#dir, 'data')
  }

  start(options = {}) {
    return Cluster.start({ ...options, template: this })
  }

  remove() {
    rmSync(this.#dir, { recursive: true, force: true })
  }

  [Symbol.dispose]() {
    this.remove()
  }
}
