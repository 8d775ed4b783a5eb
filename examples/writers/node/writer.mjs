// A writer of shape logs in a journal of JSON lines. It keeps the contract of docs/writers.md, without snapshots:
//
//   node writer.mjs write CONFIG FOLDER NAME    CONFIG is flushtracker.yaml as JSON, with kafka.bootstrap_servers and topic_prefix
//   node writer.mjs dump FOLDER                 what is stored
//   node writer.mjs read FOLDER                 what readers may see: whole transactions
import { readFileSync } from "node:fs";
import { decompress } from "fzstd";
import kafkajs from "kafkajs";
import { Journal, incarnationOf, keyOf, offsetText, parseEvent } from "./journal.mjs";

const { CompressionCodecs, CompressionTypes, Kafka, Partitioners, logLevel } = kafkajs;
// Capture compresses with zstd, which kafkajs does not have.
CompressionCodecs[CompressionTypes.ZSTD] = () => ({ decompress: async (bytes) => Buffer.from(decompress(bytes)) });

const [command, ...rest] = process.argv.slice(2);
if (command === "write") await write(...rest);
else for (const line of new Journal(rest[0], true).lines(command === "read")) console.log(line);

async function write(config, folder, name) {
  const { bootstrap_servers: servers, topic_prefix: prefix } = JSON.parse(readFileSync(config, "utf8")).kafka;
  const journal = new Journal(folder, false);
  const kafka = new Kafka({ clientId: name, brokers: servers.split(","), logLevel: logLevel.ERROR });
  // The partitioner is that of Java's clients.
  const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner });
  await producer.connect();
  // The process before may have ended between a commit and its notification.
  await notify(new Map([...journal.shapes].filter(([, shape]) => shape.cursor).map(([key, shape]) => [key, shape.cursor])));
  // A group of its own, which commits nothing: the journal has the positions, and the registry is read at each start.
  const group = { groupId: `${name}-${process.pid}-${Date.now()}`, maxWaitTimeInMs: 500, retry: { retries: 5 } };
  const consumer = kafka.consumer({ ...group, maxBytesPerPartition: 2 ** 27, maxBytes: 2 ** 27 });
  consumer.on(consumer.events.CRASH, ({ payload }) => fail(payload.error));
  await consumer.connect();
  await consumer.subscribe({ topics: [`${prefix}.shape_changes`, `${prefix}.shapes`], fromBeginning: true });
  await consumer.run({
    autoCommit: false,
    eachBatch: async ({ batch, heartbeat }) => {
      try {
        await take(batch);
      } catch (error) {
        fail(error); // kafkajs would retry.
      }
      await heartbeat();
    },
  });

  for (const [partition, offset] of Object.entries(journal.positions))
    consumer.seek({ topic: `${prefix}.shape_changes`, partition: Number(partition), offset });

  async function take({ topic, partition, messages }) {
    const texts = [];
    const flushed = new Map();
    for (const { value } of messages) {
      if (topic === `${prefix}.shapes`) {
        texts.push(...register(value));
        continue;
      }
      const text = value.toString();
      const event = parseEvent(text);
      if (event.writer !== name) continue; // Another writer's shape.
      const taken = journal.take(event);
      if (taken.isNew) texts.push(text);
      if (taken.flushed) flushed.set(keyOf(event), taken.flushed);
    }
    const positions = topic === `${prefix}.shapes` ? {} : { [partition]: String(BigInt(messages.at(-1).offset) + 1n) };
    journal.append(texts, positions); // First durable,
    await notify(flushed); // then said.
  }

  /** Note removed shapes, and those of another writer; begin incarnations. Returns texts to store. */
  function register(value) {
    const entry = value?.length ? parseEvent(value.toString()) : {}; // A tombstone has no value.
    if (entry.type !== "shape" && entry.type !== "removed_shape") return [];
    const { writer = "log", incarnation = "1" } = entry.definition ?? entry;
    const begun = { source: entry.source, shape_id: entry.shape_id, incarnation };
    const isOurs = writer === name;
    const isNew = isOurs && journal.take(begun).isNew;
    const shape = journal.shapes.get(keyOf(begun));
    if (shape && incarnationOf(begun) >= shape.incarnation && (entry.removed_at || !isOurs)) shape.removed = true;
    return isNew ? [JSON.stringify(begun)] : [];
  }

  /** Resolves once the brokers have all notifications. */
  async function notify(flushed) {
    const messages = [...flushed].map(([key, offset]) => {
      const [source, shape_id] = JSON.parse(key);
      const head = JSON.stringify({ v: 1, type: "flushed", source, shape_id, writer: name });
      const value = `${head.slice(0, -1)},"offset":${offsetText(offset)}}`;
      return { key: JSON.stringify([source, shape_id, "flushed", name]), value };
    });
    if (messages.length) await producer.send({ topic: `${prefix}.flushes`, messages, acks: -1 });
  }
}

function fail(error) {
  console.error(error);
  process.exit(1);
}
