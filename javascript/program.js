// Which davit is started, and with what.

import { accessSync, constants, mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { delimiter, dirname, join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'

const OPTIONS = new Set([
  'binary', 'apiServerOnly', 'node', 'simulatedNodes', 'devices', 'template', 'flags', 'startTimeout', 'stopTimeout', 'name',
])

/** Misspelt options would be options that nobody follows. */
export function checked(options) {
  const unknown = Object.keys(options).find((name) => !OPTIONS.has(name))
  if (unknown) throw new TypeError(`option ${unknown} is not known; there are ${[...OPTIONS].join(', ')}`)
  return options
}

function isProgram(path) {
  try {
    accessSync(path, constants.X_OK)
    return statSync(path).isFile()
  } catch {
    return false
  }
}

/** The file to start, if there is one. */
export function program(options) {
  const named = options.binary || process.env.DAVIT_BINARY
  if (named) return named
  const beside = dirname(fileURLToPath(import.meta.url))
  const places = (process.env.PATH ?? '').split(delimiter).filter(Boolean)
  return [beside, ...places].map((place) => resolve(place, 'davit')).find(isProgram)
}

/**
 * The command line, and what takes the inventory's file away, which has to be there as long as the cluster starts.
 */
export function command(options, place) {
  const line = ['up', '--exit-with-parent', ...place]
  if (!options.node) line.push('--no-node')
  if (options.apiServerOnly) line.push('--no-scheduler', '--no-controllers')
  if (options.simulatedNodes) line.push('--sim-nodes', String(options.simulatedNodes))
  let done = () => {}
  if (options.devices) {
    const inputs = mkdtempSync(join(tmpdir(), 'davit-testing-'))
    done = () => rmSync(inputs, { recursive: true, force: true })
    const inventory = join(inputs, 'devices.yaml')
    writeFileSync(inventory, options.devices)
    line.push('--devices', inventory)
  }
  return { line: [...line, ...(options.flags ?? [])], done }
}
