// Follows one table with collections of TanStack DB in each of their modes, over several servers at random.
//
// Each line on stdout says what is shown by then. No row may go back: its `n` never falls. Lines on stdin are commands:
// {"txid": 7} waits until the collections have that transaction, {"subset": {…}} asks for one by the client itself.
import { createInterface } from 'node:readline'

import { ShapeStream } from '@electric-sql/client'
import { BasicIndex, createCollection, createLiveQueryCollection, eq, gt } from '@tanstack/db'
import { electricCollectionOptions } from '@tanstack/electric-db-collection'

const [table, ...servers] = process.argv.slice(2)
const problems = []
const shown = {}

const elsewhere = async (input, options) => {
  const url = new URL(input)
  url.host = new URL(servers[Math.floor(Math.random() * servers.length)]).host
  const answer = await fetch(url, options)
  if (answer.status === 409) say({ refetches: (found.refetches ?? 0) + 1 })
  return answer
}

const shapeOptions = {
  url: servers[0],
  params: { table },
  fetchClient: elsewhere,
  backoffOptions: { initialDelay: 50, maxDelay: 500, multiplier: 2 },
  onError: (error) => problem(`stopped: ${error.status} ${error.json?.message ?? error.message}`),
}

const collection = (syncMode) => createCollection(electricCollectionOptions({
  id: syncMode, syncMode, shapeOptions, getKey: (row) => row.id, autoIndex: 'eager', defaultIndexType: BasicIndex,
}))

const eager = collection('eager')
const onDemand = collection('on-demand')
const progressive = collection('progressive')

const queries = {
  // Two over one collection on demand: one with an order and a limit, as a page has, and one by a condition.
  newest: (q) => q.from({ row: onDemand }).where(({ row }) => eq(row.region, 'eu')).orderBy(({ row }) => row.id, 'desc').limit(5),
  // Of texts: rows that leave the first ones make it ask for what follows the last.
  byRegion: (q) => q.from({ row: onDemand }).orderBy(({ row }) => row.region).orderBy(({ row }) => row.id).limit(12),
  later: (q) => q.from({ row: onDemand }).where(({ row }) => gt(row.id, 20)),
  early: (q) => q.from({ row: progressive }).where(({ row }) => eq(row.region, 'us')),
  all: (q) => q.from({ row: eager }),
}

const found = {}

function problem(text) {
  problems.push(text)
  say({})
}

function say(more) {
  Object.assign(found, more)
  console.log(JSON.stringify({ ...found, shown, problems: problems.slice(0, 5) }))
}

for (const [name, query] of Object.entries(queries)) {
  const live = createLiveQueryCollection(query)
  const newest = new Map()
  const show = () => {
    const rows = live.toArray.map(({ id, region, n }) => ({ id, region, n: Number(n) }))
    for (const row of rows) {
      if (row.n < (newest.get(row.id) ?? 0)) problems.push(`${name}: row ${row.id} went back from ${newest.get(row.id)} to ${row.n}`)
      newest.set(row.id, row.n)
    }
    // A query with an order has it; the others are compared as sets.
    shown[name] = ['newest', 'byRegion'].includes(name) ? rows : rows.sort((one, other) => one.id - other.id)
    say({})
  }
  live.subscribeChanges(show)
  live.preload().then(() => { say({ [`${name}Ready`]: true }); show() }, (error) => problem(`${name}: ${error.message}`))
}

const stream = new ShapeStream({ ...shapeOptions, log: 'changes_only', offset: 'now' })
stream.subscribe(() => {}, (error) => problem(error.message))

const commands = {
  txid: async (txid) => {
    await Promise.all([eager, onDemand, progressive].map((each) => each.utils.awaitTxId(txid, 60_000)))
    return txid
  },
  subset: async (params) => {
    const { data } = await stream.requestSnapshot(params)
    return data.map(({ value }) => value.id)
  },
}

for await (const line of createInterface({ input: process.stdin })) {
  const { number, ...command } = JSON.parse(line)
  const [[name, argument]] = Object.entries(command)
  commands[name](argument).then(
    (result) => say({ done: { ...found.done, [number]: result } }),
    (error) => problem(`${name} ${JSON.stringify(argument)}: ${error.message}`),
  )
}
