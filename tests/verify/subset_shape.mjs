// Merges subsets with the stream of changes alone, by Electric's own client over several servers at random. Subsets are
// asked for before the stream has begun, several at once, and again and again, by GET and by POST.
// Each line on stdout is what is shown: the rows by id, and how often it was told to begin again.
import { Shape, ShapeStream } from '@electric-sql/client'

const [shapeId, start, ...servers] = process.argv.slice(2)
const found = { shown: 0, subsets: 0, refused: [], rows: {} }

const elsewhere = (input, options) => {
  const url = new URL(input)
  url.host = new URL(servers[Math.floor(Math.random() * servers.length)]).host
  return fetch(url, options)
}

const stream = new ShapeStream({
  url: servers[0],
  params: { shape: shapeId },
  log: 'changes_only',
  offset: start,
  fetchClient: elsewhere,
  backoffOptions: { initialDelay: 50, maxDelay: 500, multiplier: 2 },
})

const shape = new Shape(stream)
shape.subscribe(({ rows }) => {
  found.shown += 1
  found.rows = Object.fromEntries(rows.map((row) => [`${row.id}`, `${row.n}`]))
  say()
})

const ask = (subset) => stream.requestSnapshot(subset)
  .then(({ data }) => { found.subsets += 1; return data })
  .catch((error) => { found.refused.push(`${error.status}: ${error.json?.message ?? error.message}`) })

// Before there is a handle.
await Promise.all([
  ask({ where: 'id <= $1', params: { 1: '10' } }),
  ask({ where: 'id > $1', params: { 1: '20' }, method: 'POST' }),
  ask({ orderBy: 'id DESC', limit: 3 }),
])
for (let round = 1; ; round += 1) {
  await Promise.all([
    ask({ where: 'id BETWEEN 8 AND 14', method: round % 2 ? 'POST' : 'GET' }),
    ask({ where: 'n = ANY($1)', params: { 1: '{1,2,3}' }, orderBy: 'n DESC NULLS LAST, id', limit: 5, offset: 1 }),
  ])
  const first = await stream.fetchSnapshot({ orderBy: 'id', limit: 2, offset: 1 }).catch(() => undefined)
  if (first) found.page = first.data.map((row) => Number(row.value.id))
  say()
  // While a subset is asked for, the stream stands still.
  await new Promise((resolve) => setTimeout(resolve, 300))
}

function say() {
  console.log(JSON.stringify({ ...found, isUpToDate: stream.isUpToDate, refused: found.refused.slice(0, 5) }))
}
