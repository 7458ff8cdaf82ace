// What index.d.ts promises, as users write it: checked by tsc, never run.

import { Cluster, StartError, Template, start, type Options, type TestContext } from '../index.js'

export async function uses(t: TestContext): Promise<string> {
  const options: Options = { simulatedNodes: 2, devices: 'resources: []', flags: ['-v'] as const, startTimeout: 1000 }
  await using cluster = await Cluster.start(options)
  using template: Template = await Template.prepare({}, async (one: Cluster) => {
    await one.request('POST', '/api/v1/namespaces', { metadata: { name: 'n' } })
  })
  const copy = await template.start({ name: 'copy' })
  const kept = await copy.stop({ keepLog: true })
  const { status, body } = await (await start(t)).request('GET', '/version')
  const error: Error = new StartError(kept?.path)
  // @ts-expect-error: there is no such option
  await Cluster.start({ simulateNodes: 1 })
  return `${status} ${body} ${cluster.kubeconfig} ${cluster.url} ${cluster.processId + 1} ${error.message}`
}
