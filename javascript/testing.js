// Clusters that end with a test of node:test.

import { Cluster } from './cluster.js'

export async function start(t, options = {}) {
  const cluster = await Cluster.start({ name: t.name, ...options })
  t.after(async () => {
    const kept = await cluster.stop({ keepLog: Boolean(t.error) })
    if (kept) t.diagnostic(`davit's log is kept: ${kept.path}\n${kept.tail}`)
  })
  return cluster
}
