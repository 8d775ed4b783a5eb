// A writer of shape logs in a journal of JSON lines. It keeps the contract of docs/writers.md, without snapshots:
//
//	writer write CONFIG FOLDER NAME    CONFIG is flushtracker.yaml as JSON, with kafka.bootstrap_servers and topic_prefix
//	writer dump FOLDER                 what is stored
//	writer read FOLDER                 what readers may see: whole transactions
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"math"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Entry is a shape's entry in the registry, or the short one that is left of a removed shape.
type Entry struct {
	Type        string          `json:"type"`
	Source      string          `json:"source"`
	ShapeID     string          `json:"shape_id"`
	RemovedAt   *Offset         `json:"removed_at"`
	Incarnation int64           `json:"incarnation"`
	Writer      string          `json:"writer"`
	Definition  json.RawMessage `json:"definition"`
}

func main() {
	if len(os.Args) == 5 && os.Args[1] == "write" {
		log.Fatal(write(os.Args[2], os.Args[3], os.Args[4]))
	} else if len(os.Args) != 3 {
		log.Fatal("usage: writer write CONFIG FOLDER NAME | dump FOLDER | read FOLDER")
	} else if err := print(os.Args[2], os.Args[1] == "read"); err != nil {
		log.Fatal(err)
	}
}

func write(config, folder, name string) error {
	text, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	var settings struct {
		Kafka struct {
			Servers string `json:"bootstrap_servers"`
			Prefix  string `json:"topic_prefix"`
		} `json:"kafka"`
	}
	if err := json.Unmarshal(text, &settings); err != nil {
		return err
	}
	journal, err := openJournal(folder, false)
	if err != nil {
		return err
	}
	ctx, prefix := context.Background(), settings.Kafka.Prefix
	// It reads all from the beginning: the cursors drop what is stored. By default it partitions by murmur2, as Java's
	// clients do, and waits for all replicas that are in sync.
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(settings.Kafka.Servers, ",")...),
		kgo.ConsumeTopics(prefix+".shape_changes", prefix+".shapes"), kgo.DefaultProduceTopic(prefix+".flushes"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(500*time.Millisecond))
	if err != nil {
		return err
	}
	// The process before may have ended between a commit and its notification.
	noted := map[shapeKey]Offset{}
	for key, s := range journal.shapes {
		if s.cursor != nil {
			noted[key] = *s.cursor
		}
	}
	for {
		if err := notify(ctx, client, noted, name); err != nil {
			return err
		}
		clear(noted)
		fetches := client.PollFetches(ctx)
		if errors := fetches.Errors(); len(errors) > 0 {
			return errors[0].Err
		}
		var stored []Changes
		for _, record := range fetches.Records() {
			var event Changes
			if record.Topic == prefix+".shapes" {
				event, err = journal.entry(record.Value, name)
			} else {
				err = parse(record.Value, &event)
			}
			if err != nil {
				return fmt.Errorf("%s/%d at %d: %w", record.Topic, record.Partition, record.Offset, err)
			}
			if event.Writer != name { // Another writer's shape, or nothing of a shape.
				continue
			}
			flushed, isNew := journal.take(event)
			if isNew {
				stored = append(stored, event)
			}
			if flushed != nil {
				noted[shapeKey{event.Source, event.ShapeID}] = *flushed
			}
		}
		if err := journal.append(stored); err != nil { // First durable,
			return err
		} // then said.
	}
}

// entry returns an entry of the registry as an event that begins its incarnation, or removes it.
func (j *Journal) entry(text []byte, name string) (Changes, error) {
	var entry Entry
	if len(text) == 0 { // A tombstone.
		return Changes{}, nil
	}
	if err := parse(text, &entry); err != nil || entry.Type != "shape" && entry.Type != "removed_shape" {
		return Changes{}, err
	}
	if entry.Type == "shape" { // It has these in its definition.
		if err := json.Unmarshal(entry.Definition, &entry); err != nil {
			return Changes{}, err
		}
	}
	entry.Incarnation = max(entry.Incarnation, 1)
	s := j.shapes[shapeKey{entry.Source, entry.ShapeID}]
	if s != nil && entry.Writer != name && entry.Incarnation >= s.incarnation {
		s.removed = true // It has changed hands.
	}
	return Changes{Source: entry.Source, ShapeID: entry.ShapeID, Writer: entry.Writer, Incarnation: entry.Incarnation,
		Removed: entry.RemovedAt != nil}, nil
}

// notify returns once the brokers have all notifications.
func notify(ctx context.Context, client *kgo.Client, noted map[shapeKey]Offset, name string) error {
	var records []*kgo.Record
	for shape, offset := range noted {
		key, err := compact([]string{shape.source, shape.id, "flushed", name})
		if err != nil {
			return err
		}
		value, err := compact(map[string]any{
			"v": 1, "type": "flushed", "source": shape.source, "shape_id": shape.id, "writer": name, "offset": offset,
		})
		if err != nil {
			return err
		}
		records = append(records, &kgo.Record{Key: key, Value: value})
	}
	return client.ProduceSync(ctx, records...).FirstErr()
}

// compact is JSON without escapes of HTML, which would make another key, and without a line break.
func compact(value any) ([]byte, error) {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return bytes.TrimRight(buffer.Bytes(), "\n"), err
}

func print(folder string, whole bool) error {
	journal, err := openJournal(folder, true)
	if err != nil {
		return err
	}
	for key, s := range journal.shapes {
		for _, item := range s.items {
			if whole && item.Offset.Tx == s.cursor.Tx && s.cursor.Op != math.MaxInt64 {
				break // The last transaction is not complete.
			}
			line, err := compact(map[string]any{
				"source": key.source, "shape_id": key.id, "offset": item.Offset,
				"operation": item.Operation, "key": item.Key, "value": item.Value,
			})
			if err != nil {
				return err
			}
			fmt.Println(string(line))
		}
	}
	return nil
}
