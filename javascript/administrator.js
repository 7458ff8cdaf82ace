// Requests of who may do everything, by nothing but Node.

import { Agent, request } from 'node:https'

/** Milliseconds that nothing may be heard of an answer. */
const SILENCE = 60_000

/** What a line of davit's own kubeconfig holds in base64. */
function held(kubeconfig, field) {
  const line = new RegExp(`^\\s*${field}:\\s*"?([A-Za-z0-9+/=]+)"?\\s*$`, 'm').exec(kubeconfig)
  if (!line) throw new Error(`the cluster's kubeconfig has no ${field}`)
  return Buffer.from(line[1], 'base64')
}

export class Administrator {
  #url
  #agent

  constructor(url, kubeconfig) {
    this.#url = url
    this.#agent = new Agent({
      keepAlive: true,
      ca: held(kubeconfig, 'certificate-authority-data'),
      cert: held(kubeconfig, 'client-certificate-data'),
      key: held(kubeconfig, 'client-key-data'),
    })
  }

  /** The code of the answer, and what it holds. */
  request(method, path, body) {
    const type = method === 'PATCH' ? 'application/merge-patch+json' : 'application/json'
    const headers = { accept: 'application/json', ...(body === undefined ? {} : { 'content-type': type }) }
    return new Promise((resolve, reject) => {
      const asked = request(new URL(path, this.#url), { method, headers, agent: this.#agent, timeout: SILENCE }, (answer) => {
        const parts = []
        answer.on('error', reject).on('data', (part) => parts.push(part)).on('end', () => {
          const text = Buffer.concat(parts).toString()
          const isJson = (answer.headers['content-type'] ?? '').startsWith('application/json')
          resolve({ status: answer.statusCode, body: isJson ? JSON.parse(text) : text })
        })
      })
      asked.on('timeout', () => asked.destroy(new Error(`${method} ${path}: no answer within ${SILENCE} ms`)))
      asked.on('error', reject)
      asked.end(body === undefined ? undefined : JSON.stringify(body))
    })
  }

  close() {
    this.#agent.destroy()
  }
}
