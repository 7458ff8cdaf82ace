import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { test } from 'node:test'
import { setTimeout as wait } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'

import { Cluster, StartError, Template, start } from '../index.js'

const MAPS = '/api/v1/namespaces/default/configmaps'

/** Waits until it holds, for a minute at most. */
async function eventually(what, holds) {
  for (const end = Date.now() + 60_000; !(await holds()); await wait(20)) {
    if (Date.now() > end) assert.fail(`not within a minute: ${what}`)
  }
}

/** All of an ephemeral cluster. */
const directory = (cluster) => dirname(dirname(cluster.kubeconfig))

async function create(cluster, name) {
  const { status } = await cluster.request('POST', MAPS, { metadata: { name } })
  assert.equal(status, 201)
}

function temporary(t) {
  const dir = mkdtempSync(join(tmpdir(), 'davit-suite-'))
  t.after(() => rmSync(dir, { recursive: true }))
  return dir
}

function lives(process_) {
  try {
    process.kill(process_, 0)
    return true
  } catch {
    return false
  }
}

/** The program beside this one: the process, and its end with what it has written. */
function child(words, env) {
  const program = fileURLToPath(new URL('child.js', import.meta.url))
  // A test runner that runs this one would be told of the child's tests in its own form.
  const { NODE_TEST_CONTEXT: _, ...inherited } = process.env
  const started = spawn(process.execPath, [program, ...words], {
    env: { ...inherited, ...env },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  let text = ''
  started.stdout.on('data', (part) => (text += part))
  const ended = new Promise((resolve) => started.on('close', (code) => resolve({ code, text })))
  return { started, ended }
}

test('many at once know nothing of each other and leave nothing', async () => {
  const clusters = await Promise.all([0, 1, 2, 3].map(() => Cluster.start()))
  const left = clusters.map(directory)
  await Promise.all(clusters.map((cluster, number) => create(cluster, `of-${number}`)))
  for (const [number, cluster] of clusters.entries()) {
    assert.match(cluster.url, /^https:\/\/127\.0\.0\.1:\d+$/)
    const { body } = await cluster.request('GET', MAPS)
    const names = body.items.map((item) => item.metadata.name).filter((name) => name.startsWith('of-'))
    assert.deepEqual(names, [`of-${number}`])
  }
  assert.ok(left.every(existsSync))
  await Promise.all(clusters.map((cluster) => cluster.stop()))
  assert.deepEqual(left.filter(existsSync), [])
  assert.equal(await clusters[0].stop(), undefined)
})

/** Waits until two nodes have three devices each. */
const haveDevices = (cluster) =>
  eventually('two nodes with three devices each', async () => {
    const { items } = (await cluster.request('GET', '/api/v1/nodes')).body
    return items.length === 2 && items.every((node) => node.status.allocatable?.['example.com/gpu'] === '3')
  })

test('simulated nodes have devices, also below a directory with a long path', async (t) => {
  const options = { simulatedNodes: 2, devices: 'resources:\n- name: example.com/gpu\n  count: 3\n' }
  await haveDevices(await start(t, options))
  // A template is where temporary files are.
  const place = join(temporary(t), 'long-'.repeat(30))
  mkdirSync(place)
  const usual = tmpdir()
  process.env.TMPDIR = place
  t.after(() => (process.env.TMPDIR = usual))
  const template = await Template.prepare(options, haveDevices)
  template.remove()
})

test('copies begin where the template ended', async (t) => {
  const template = await Template.prepare({}, (cluster) => create(cluster, 'prepared'))
  const [one, other] = await Promise.all([start(t, { template }), template.start()])
  template.remove()
  assert.ok(!existsSync(dirname(template.dataDir)))
  for (const cluster of [one, other]) {
    assert.equal((await cluster.request('GET', `${MAPS}/prepared`)).status, 200)
  }
  await create(one, 'later')
  const { status, body } = await other.request('GET', `${MAPS}/later`)
  assert.deepEqual([status, body.reason], [404, 'NotFound'])
  await other.stop()
})

test('what does not start says why', async () => {
  const refused = (options, said) =>
    assert.rejects(Cluster.start(options), (error) => error instanceof StartError && said.test(error.message))
  await refused({ flags: ['--no-such-flag'] }, /did not become ready[^]*--no-such-flag/)
  await refused({ binary: '/nonexistent/davit' }, /cannot start \/nonexistent\/davit/)
  await refused({ flags: ['--template', '/nonexistent'] }, /there is no cluster/)
  await refused({ startTimeout: 1 }, /did not become ready within 1 ms/)
  await assert.rejects(Cluster.start({ simulateNodes: 1 }), /simulateNodes is not known/)
  await assert.rejects(Template.prepare({ node: true }, () => {}), /containers cannot be copied/)
  const failed = Template.prepare({}, () => assert.fail('on purpose'))
  await assert.rejects(failed, /on purpose/)
})

test('the log of a failed test is kept', async (t) => {
  const logs = temporary(t)
  const { code, text } = await child(['fails'], { DAVIT_TEST_LOGS: logs }).ended
  const kept = readdirSync(logs)
  assert.notEqual(code, 0)
  assert.equal(kept.length, 1)
  assert.match(kept[0], /^davit-testing-fails-on-purpose-\d+-[0-9a-f]+\.log$/)
  assert.ok(statSync(join(logs, kept[0])).size > 0)
  assert.ok(text.includes(kept[0]), text)
})

test('nothing is left of a program that is killed', async (t) => {
  const ready = join(temporary(t), 'ready')
  const place = temporary(t)
  const { started, ended } = child(['waits', ready], { TMPDIR: place, DAVIT_TEST_LOGS: '' })
  let cluster = 0
  await eventually('a cluster in another process', () => {
    cluster = existsSync(ready) ? Number(readFileSync(ready, 'utf8')) : 0
    return cluster > 0
  })
  started.kill('SIGKILL')
  await ended
  await eventually('the end of the cluster', () => !lives(cluster))
  assert.deepEqual(readdirSync(place), [])
})

test('a program that forgets to stop its cluster ends, and the cluster with it', async () => {
  const { code, text } = await child(['ends']).ended
  assert.equal(code, 0)
  await eventually('the end of the cluster', () => !lives(Number(text)))
})
