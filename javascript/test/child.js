// A program for cluster.test.js: `fails` is a test that fails, `waits` is a program that is killed with a cluster.

import assert from 'node:assert/strict'
import { writeFileSync } from 'node:fs'
import { test } from 'node:test'

import { Cluster, start } from '../index.js'

const [, , what, ready] = process.argv
if (what === 'waits') {
  const cluster = await Cluster.start()
  writeFileSync(ready, String(cluster.processId))
  setTimeout(() => {}, 600_000)
} else if (what === 'ends') {
  const cluster = await Cluster.start()
  console.log(cluster.processId)
} else {
  test('fails on purpose', async (t) => {
    await start(t, { flags: ['-v'] })
    assert.fail('on purpose')
  })
}
