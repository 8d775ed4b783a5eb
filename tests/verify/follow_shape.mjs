// Follows a shape with Electric's own client, over several servers at random, and checks each state that it is shown:
// all rows have the same `n`, as every transaction of the table leaves them, and `n` never goes back.
// `ids` is the sum of the ids, by which a state can be compared with the query's.
// Each line on stdout is what has been shown by then.
import { Shape, ShapeStream } from '@electric-sql/client'

const [shapeId, mode, ...servers] = process.argv.slice(2)
const found = { shown: 0, n: -1, rows: 0, problems: [] }

const elsewhere = (input, options) => {
  const url = new URL(input)
  url.host = new URL(servers[Math.floor(Math.random() * servers.length)]).host
  return fetch(url, options)
}

const stream = new ShapeStream({
  url: servers[0],
  params: { shape: shapeId },
  liveSse: mode === 'sse',
  fetchClient: elsewhere,
  backoffOptions: { initialDelay: 50, maxDelay: 500, multiplier: 2 },
  onError: (error) => {
    found.stopped = { status: error.status, message: error.json?.message ?? error.message }
    say()
  },
})

const shape = new Shape(stream)
shape.subscribe(({ rows }) => {
  // An error is shown with the rows as they are.
  if (shape.error) return
  const values = new Set(rows.map((row) => Number(row.n)))
  const n = rows.length ? Math.min(...values) : found.n
  if (values.size > 1) found.problems.push(`part of a transaction: ${[...values].join(', ')}`)
  if (n < found.n) found.problems.push(`back from ${found.n} to ${n}`)
  const ids = rows.reduce((sum, row) => sum + Number(row.id), 0)
  Object.assign(found, { shown: found.shown + 1, n, rows: rows.length, ids, types: typeof rows[0]?.id + typeof rows[0]?.n })
  found.first ??= rows.map((row) => JSON.stringify(row, (_, value) => (typeof value === 'bigint' ? `${value}` : value)))[0]
  say()
})

function say() {
  console.log(JSON.stringify({ ...found, problems: found.problems.slice(0, 5) }))
}
