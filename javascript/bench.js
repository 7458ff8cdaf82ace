// node bench.js [CLUSTERS]: the medians of so many starts and stops.

import { Cluster } from './index.js'

const median = (times) => times.sort((a, b) => a - b)[times.length >> 1].toFixed(1)
const starts = []
const stops = []
for (let left = Number(process.argv[2] ?? 100); left > 0; left -= 1) {
  const begun = performance.now()
  const cluster = await Cluster.start()
  const ready = performance.now()
  await cluster.stop()
  starts.push(ready - begun)
  stops.push(performance.now() - ready)
}
console.log(`median of ${starts.length}: start ${median(starts)} ms, stop ${median(stops)} ms`)
