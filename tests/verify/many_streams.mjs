// Asks for a shape's next change many times at once on one connection of HTTP/2, and prints the statuses and the bodies.
import { connect } from 'node:http2'

const [port, address, count] = process.argv.slice(2)
const session = connect(`http://127.0.0.1:${port}`)
const answers = await Promise.all(Array.from({ length: Number(count) }, (_, cursor) => new Promise((resolve, reject) => {
  const stream = session.request({ ':path': `${address}&cursor=${cursor}` })
  const found = { body: '' }
  stream.setEncoding('utf8')
  stream.on('response', (headers) => { found.status = headers[':status'] })
  stream.on('data', (data) => { found.body += data })
  stream.on('end', () => resolve(found))
  stream.on('error', reject)
})))
console.log(JSON.stringify(answers))
session.close()
