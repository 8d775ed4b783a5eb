package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"os"
	"path/filepath"
)

// Offset is the position of an operation: its transaction's commit LSN, and its number within the transaction.
type Offset struct {
	Tx int64 `json:"tx_offset"`
	Op int64 `json:"op_offset"`
}

func (a Offset) after(b Offset) bool { return a.Tx > b.Tx || a.Tx == b.Tx && a.Op > b.Op }

// Changes is an event of shape_changes. One without Last begins an incarnation, and has no changes.
type Changes struct {
	Source      string          `json:"source"`
	ShapeID     string          `json:"shape_id"`
	Writer      string          `json:"writer"`
	Incarnation int64           `json:"incarnation"`
	Follows     Offset          `json:"follows"`
	Start       bool            `json:"start"`
	Last        *Offset         `json:"last_log_offset"`
	Commit      json.RawMessage `json:"commit"`
	Items       []Item          `json:"items"`
	Removed     bool            `json:"-"` // By the registry, which is read at each start.
}

// Item is one operation. Key and Value are kept as they are.
type Item struct {
	Offset    Offset          `json:"offset"`
	Operation string          `json:"operation"`
	Key       json.RawMessage `json:"key"`
	Value     json.RawMessage `json:"value"`
}

func (e Changes) reached() Offset {
	if string(e.Commit) != "null" {
		return Offset{e.Last.Tx, math.MaxInt64}
	}
	if n := len(e.Items); n > 0 && e.Items[n-1].Offset.after(*e.Last) {
		return e.Items[n-1].Offset
	}
	return *e.Last
}

type shapeKey struct{ source, id string }

type shape struct {
	incarnation int64
	cursor      *Offset
	removed     bool
	items       []Item
}

// Journal is a file with a line for each batch of events, and what it says about each shape.
type Journal struct {
	file      *os.File
	shapes    map[shapeKey]*shape
	keepItems bool
}

func openJournal(folder string, keepItems bool) (*Journal, error) {
	path, flags := filepath.Join(folder, "journal.jsonl"), os.O_RDWR|os.O_CREATE
	if keepItems {
		flags = os.O_RDONLY
	}
	file, err := os.OpenFile(path, flags, 0o644)
	if err != nil {
		return nil, err
	}
	j := &Journal{file, map[shapeKey]*shape{}, keepItems}
	text, err := io.ReadAll(file)
	if err != nil {
		return nil, err
	}
	end := 0
	for {
		length := bytes.IndexByte(text[end:], '\n') + 1
		var events []Changes
		if length == 0 || json.Unmarshal(text[end:end+length], &events) != nil {
			break // A kill or a power failure cut off the last line, of which nothing was notified.
		}
		for _, event := range events {
			j.take(event)
		}
		end += length
	}
	if keepItems {
		return j, nil
	}
	parent, err := os.Open(folder)
	if err != nil {
		return nil, err
	}
	_, seek := file.Seek(int64(end), io.SeekStart)
	// Before these, what a killed process has written is not durable, nor is the name of a new file.
	return j, errors.Join(file.Truncate(int64(end)), seek, file.Sync(), parent.Sync(), parent.Close())
}

// append stores a batch of events durably.
func (j *Journal) append(events []Changes) error {
	if len(events) == 0 {
		return nil
	}
	line, err := json.Marshal(events)
	if err != nil {
		return err
	}
	if _, err := j.file.Write(append(line, '\n')); err != nil {
		return err
	}
	return j.file.Sync()
}

// take follows the chain of the event's shape. It returns what may be notified once the event is durable, nil for
// nothing, and whether the event is new, so that it must be stored.
func (j *Journal) take(e Changes) (*Offset, bool) {
	key := shapeKey{e.Source, e.ShapeID}
	s := j.shapes[key]
	if s == nil {
		s = &shape{incarnation: 1}
		j.shapes[key] = s
	}
	e.Incarnation = max(e.Incarnation, 1)
	begins := e.Incarnation > s.incarnation
	if begins {
		*s = shape{incarnation: e.Incarnation, cursor: s.cursor}
	}
	s.removed = s.removed || e.Removed && e.Incarnation == s.incarnation
	if e.Incarnation < s.incarnation || s.removed || e.Last == nil {
		return nil, begins
	}
	switch reached := e.reached(); {
	case s.cursor != nil && !reached.after(*s.cursor):
		return s.cursor, begins // A resend: notify again what is durable.
	case !e.Start && (s.cursor == nil || e.Follows.after(*s.cursor)):
		log.Printf("gap: shape %v follows %v, cursor %v", key, e.Follows, s.cursor)
		return nil, begins
	default:
		for _, item := range e.Items {
			if j.keepItems && (s.cursor == nil || item.Offset.after(*s.cursor)) {
				s.items = append(s.items, item)
			}
		}
		s.cursor = &reached
		return s.cursor, true
	}
}

// parse refuses an event that a newer release wrote.
func parse(text []byte, event any) error {
	var version struct{ V int }
	if err := json.Unmarshal(text, &version); err != nil {
		return err
	}
	if version.V != 1 {
		return fmt.Errorf("this writer reads events of version 1, not %d: upgrade it", version.V)
	}
	return json.Unmarshal(text, event)
}
