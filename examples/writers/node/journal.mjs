// A journal of JSON lines: one for each batch of events, which is stored whole or not at all.
import { closeSync, existsSync, fsyncSync, ftruncateSync, openSync, readFileSync, writeSync } from "node:fs";
import { join } from "node:path";

const INFINITY = 2n ** 63n - 1n;
const NUMBER = /"(?:[^"\\]|\\.)*"|-?\d+/g;

/** Parse JSON; integers become strings, because above 2^53 `JSON.parse` would change them. */
export const parse = (text) => JSON.parse(text.replace(NUMBER, (found) => (found[0] === '"' ? found : `"${found}"`)));

/** An event of a topic; one of a newer release ends the writer. */
export function parseEvent(text) {
  const event = parse(text);
  if (event.v !== "1") throw new Error(`this writer reads events of version 1, not ${event.v}: upgrade it`);
  return event;
}

export const offsetText = ([tx, op]) => `{"tx_offset":${tx},"op_offset":${op}}`;
const offsetOf = (event) => [BigInt(event.tx_offset), BigInt(event.op_offset)];
const isAfter = (a, b) => a[0] > b[0] || (a[0] === b[0] && a[1] > b[1]);

function reached(event) {
  const last = offsetOf(event.last_log_offset);
  if (event.commit) return [last[0], INFINITY];
  const item = event.items.length ? offsetOf(event.items.at(-1).offset) : last;
  return isAfter(item, last) ? item : last;
}

export const keyOf = (event) => JSON.stringify([event.source, event.shape_id]);
export const incarnationOf = (event) => BigInt(event.incarnation ?? 1);

export class Journal {
  shapes = new Map();
  positions = {}; // Of the partitions of shape_changes: where to continue.

  /** With `keepItems` it is only read. */
  constructor(folder, keepItems) {
    this.keepItems = keepItems;
    const path = join(folder, "journal.jsonl");
    const bytes = existsSync(path) ? readFileSync(path) : Buffer.alloc(0);
    let end = 0;
    for (let next; (next = bytes.indexOf("\n", end)) >= 0; end = next + 1) {
      let batch;
      try {
        batch = JSON.parse(bytes.toString("utf8", end, next));
      } catch {
        break; // A kill or a power failure cut off the last line, of which nothing was notified.
      }
      for (const text of batch.texts) this.take(parse(text));
      Object.assign(this.positions, batch.positions);
    }
    if (keepItems) return;
    this.file = openSync(path, "a");
    ftruncateSync(this.file, end);
    // Before these, what a killed process has written is not durable, nor is the name of a new file.
    fsyncSync(this.file);
    const parent = openSync(folder, "r");
    fsyncSync(parent);
    closeSync(parent);
  }

  /** Store the texts of a batch of events durably, with the positions after them. */
  append(texts, positions) {
    const line = Buffer.from(`${JSON.stringify({ texts, positions })}\n`);
    for (let done = 0; done < line.length; ) done += writeSync(this.file, line, done);
    fsyncSync(this.file);
  }

  /**
   * Follow the chain of the event's shape. `flushed` may be notified once the event is durable; `isNew` says that it must
   * be stored. An event without `last_log_offset` only begins an incarnation.
   */
  take(event) {
    const key = keyOf(event);
    const incarnation = incarnationOf(event);
    if (!this.shapes.has(key)) this.shapes.set(key, { incarnation: 1n, cursor: null, removed: false, items: [] });
    const shape = this.shapes.get(key);
    const begins = incarnation > shape.incarnation;
    if (begins) Object.assign(shape, { incarnation, removed: false, items: [] });
    if (incarnation < shape.incarnation || shape.removed || !event.last_log_offset) return { isNew: begins };
    const after = reached(event);
    if (shape.cursor && !isAfter(after, shape.cursor)) return { flushed: shape.cursor, isNew: begins }; // A resend.
    if (!event.start && (!shape.cursor || isAfter(offsetOf(event.follows), shape.cursor))) {
      console.error(`gap: shape ${key} at ${shape.cursor}, next is ${after}`);
      return { isNew: begins };
    }
    for (const item of this.keepItems ? event.items : [])
      if (!shape.cursor || isAfter(offsetOf(item.offset), shape.cursor)) shape.items.push(item);
    shape.cursor = after;
    return { flushed: after, isNew: true };
  }

  /** The lines of what is stored; with `whole`, of whole transactions. */
  *lines(whole) {
    for (const [key, shape] of this.shapes) {
      const [source, shape_id] = JSON.parse(key);
      for (const { offset, operation, key: row, value = null } of shape.items) {
        const at = offsetOf(offset);
        if (whole && at[0] === shape.cursor[0] && shape.cursor[1] !== INFINITY) break; // It is not complete.
        const rest = JSON.stringify({ source, shape_id, operation, key: row, value });
        yield `{"offset":${offsetText(at)},${rest.slice(1)}`;
      }
    }
  }
}
