// What a cluster writes. It has a name only below DAVIT_TEST_LOGS, or once it is kept: a test that is killed leaves nothing
// where temporary files are.

import { randomBytes } from 'node:crypto'
import { closeSync, fstatSync, openSync, readSync, unlinkSync, writeSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

/** Lines of a log that stand in errors, and bytes that are read for them. */
const SHOWN_LINES = 40
const SHOWN_BYTES = 64 << 10
/** As much of a test's name is in the name of its log. */
const NAME_LENGTH = 100

export class Log {
  #test
  #path
  #named
  #file

  constructor(test) {
    this.#test = test.replace(/[^-_.A-Za-z0-9]/g, '-').slice(0, NAME_LENGTH)
    const dir = process.env.DAVIT_TEST_LOGS
    this.#named = Boolean(dir)
    this.#path = this.#place(dir || tmpdir())
    this.#file = openSync(this.#path, 'wx+', 0o600)
    if (!this.#named) unlinkSync(this.#path)
  }

  #place(dir) {
    return join(dir, `davit-testing-${this.#test}-${process.pid}-${randomBytes(4).toString('hex')}.log`)
  }

  /** For the process that writes. */
  get file() {
    return this.#file
  }

  #read(from, length) {
    const buffer = Buffer.alloc(length)
    return buffer.subarray(0, readSync(this.#file, buffer, 0, length, from))
  }

  /** The last lines. */
  tail() {
    const { size } = fstatSync(this.#file)
    const length = Math.min(size, SHOWN_BYTES)
    return this.#read(size - length, length).toString().trimEnd().split('\n').slice(-SHOWN_LINES).join('\n')
  }

  /** Closes the log and says where it is. */
  keep() {
    if (!this.#named) {
      const kept = openSync(this.#path, 'wx', 0o600)
      for (let at = 0; ;) {
        const part = this.#read(at, SHOWN_BYTES)
        if (part.length === 0) break
        writeSync(kept, part)
        at += part.length
      }
      closeSync(kept)
    }
    closeSync(this.#file)
    return this.#path
  }

  /** Leaves nothing of it. */
  drop() {
    closeSync(this.#file)
    if (this.#named) unlinkSync(this.#path)
  }
}
