// A Kubernetes cluster in a test. What the parts promise stands in index.d.ts.

export { Cluster, StartError } from './cluster.js'
export { Template } from './template.js'
export { start } from './testing.js'
