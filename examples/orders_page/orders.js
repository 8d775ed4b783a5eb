import { and, createCollection, createLiveQueryCollection, eq } from '@tanstack/db'
import { electricCollectionOptions } from '@tanstack/electric-db-collection'

const PAGE = 15
const byId = (id) => document.getElementById(id)
const given = new URLSearchParams(location.search)
const url = given.get('url') ?? 'http://127.0.0.1:9470/v1/shape'

// Of the rows that are there, only those are loaded that a query asks for. Changes come of the whole table.
const table = (name) => createCollection(electricCollectionOptions({
  id: name,
  syncMode: 'on-demand',
  getKey: (row) => row.id,
  shapeOptions: { url, params: { table: `public.${name}` }, onError: (error) => stopped(error) },
}))
const orders = table('orders')
const customers = table('customers')

// Two queries over one collection, which loads the rows of each, and follows the changes of both.
const newest = (region, count) => createLiveQueryCollection((q) => q
  .from({ order: orders })
  .where(({ order }) => eq(order.region, region))
  .orderBy(({ order }) => order.id, 'desc')
  .limit(count))

const open = (customer) => createLiveQueryCollection((q) => q
  .from({ order: orders })
  .where(({ order }) => and(eq(order.customer, customer), eq(order.status, 'open')))
  .orderBy(({ order }) => order.id, 'desc')
  .limit(PAGE))

const who = (customer) => createLiveQueryCollection((q) => q
  .from({ customer: customers })
  .where(({ customer: each }) => eq(each.id, customer)))

const shown = {}

function follow(place, query, columns, told = () => `${query.size} orders; ${orders.size} are loaded`) {
  shown[place]?.cleanup()
  shown[place] = query
  const show = () => {
    if (shown[place] !== query) return
    byId(place).replaceChildren(...query.toArray.map((found) => row(columns.map((name) => found[name]), found)))
    state(place, told(), 'live')
  }
  query.subscribeChanges(show)
  query.preload().then(show, stopped)
}

// Text is set as text, never as HTML: whatever a row has, it is shown.
function row(values, found) {
  const line = document.createElement('tr')
  for (const value of values) line.appendChild(document.createElement('td')).textContent = String(value ?? '')
  if ('customer' in found) line.onclick = () => showCustomer(found.customer)
  return line
}

function state(place, text, name) {
  byId(`${place}-state`).textContent = text
  document.body.dataset[place] = name
}

function stopped(error) {
  for (const place of ['newest', 'who', 'open']) state(place, `stopped: ${error.json?.message ?? error.message}`, 'stopped')
}

let count = PAGE

const showRegion = () => follow('newest', newest(byId('region').value, count), ['id', 'customer', 'status'])

function showCustomer(customer) {
  follow('who', who(customer), ['id', 'level', 'visits'], () => '')
  follow('open', open(customer), ['id', 'region', 'status'])
}

byId('region').onchange = () => { count = PAGE; showRegion() }
byId('more').onclick = () => { count += PAGE; showRegion() }
showRegion()
