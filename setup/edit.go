package setup

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// The marks of lines in a file that belongs to somebody else.
const (
	addedMark   = " # graze"      // ends a line that was added
	removedMark = "# graze was: " // begins a line that was there
)

// A setting is a key of a TOML file and its value, a string, a bool or a list of
// strings.
type setting struct {
	table []string
	key   string
	value any
}

func (s setting) line() string { return s.key + " = " + literal(s.value) }

func (s setting) path() []string { return append(slices.Clone(s.table), s.key) }

// literal writes a value as TOML.
func literal(v any) string {
	switch v := v.(type) {
	case string:
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(v) + `"`
	case []any:
		parts := make([]string, len(v))
		for i, one := range v {
			parts[i] = literal(one)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	return fmt.Sprint(v)
}

// header writes the header of a table.
func header(table []string) string {
	parts := make([]string, len(table))
	for i, p := range table {
		parts[i] = p
		if strings.ContainsFunc(p, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
		}) {
			parts[i] = literal(p)
		}
	}
	return strings.Join(parts, ".")
}

// An entry is a table's header or a key with its value.
type entry struct {
	kind   unstable.Kind
	path   []string
	line   int // where its key ends, from 0
	keyEnd int // in that line
}

// entries finds what a TOML text consists of.
func entries(text string) ([]entry, error) {
	var p unstable.Parser
	p.Reset([]byte(text))
	var list []entry
	var table []string
	for p.NextExpression() {
		node := p.Expression()
		e := entry{kind: node.Kind}
		var last unstable.Range
		for it := node.Key(); it.Next(); {
			e.path = append(e.path, string(it.Node().Data))
			last = it.Node().Raw
		}
		end := int(last.Offset + last.Length)
		e.line = strings.Count(text[:end], "\n")
		e.keyEnd = end - (strings.LastIndexByte(text[:end], '\n') + 1)
		if e.kind == unstable.KeyValue {
			e.path = append(slices.Clone(table), e.path...)
		} else {
			table = e.path
		}
		list = append(list, e)
	}
	return list, p.Error()
}

// edit returns a TOML text with a setting. It reports whether that was needed.
func edit(text string, s setting) (string, bool, error) {
	before, err := decode(text)
	if err != nil {
		return "", false, err
	}
	if reflect.DeepEqual(get(before, s.path()), s.value) {
		return text, false, nil
	}
	list, err := entries(text)
	if err != nil {
		return "", false, err
	}
	after := place(text, list, s)
	got, err := decode(after)
	if err == nil && put(before, s.path(), s.value) && !reflect.DeepEqual(before, got) {
		err = errors.New("something else would change, too")
	}
	if err != nil {
		return "", false, fmt.Errorf("%s in [%s] can't be set: %w", s.line(), header(s.table), err)
	}
	return after, true, nil
}

// place puts a setting where it belongs: in the place of the old one, below its
// table's header, or in a new table at the end.
func place(text string, list []entry, s setting) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	join := func() string { return strings.Join(lines, "\n") + "\n" }
	for _, e := range list {
		if e.kind == unstable.KeyValue && slices.Equal(e.path, s.path()) {
			old := lines[e.line]
			lines[e.line] = removedMark + old
			lines = slices.Insert(lines, e.line+1, old[:e.keyEnd]+" = "+literal(s.value)+addedMark)
			return join()
		}
	}
	for _, e := range list {
		if e.kind == unstable.Table && slices.Equal(e.path, s.table) {
			at := e.line + 1
			for at < len(lines) && strings.HasSuffix(lines[at], addedMark) && !strings.HasPrefix(strings.TrimSpace(lines[at]), "[") {
				at++
			}
			indent := lines[e.line][:len(lines[e.line])-len(strings.TrimLeft(lines[e.line], " \t"))]
			lines = slices.Insert(lines, at, indent+"  "+s.line()+addedMark)
			return join()
		}
	}
	lines = append(lines, "["+header(s.table)+"]"+addedMark, "  "+s.line()+addedMark)
	return join()
}

// restore takes edits back.
func restore(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		bare := strings.TrimSuffix(line, "\n")
		if strings.HasSuffix(bare, addedMark) && !strings.HasPrefix(bare, removedMark) {
			continue
		}
		lines = append(lines, strings.TrimPrefix(line, removedMark))
	}
	return strings.Join(lines, "")
}

func decode(text string) (map[string]any, error) {
	m := make(map[string]any)
	err := toml.Unmarshal([]byte(text), &m)
	return m, err
}

// get returns what a decoded text has at a path, nil if nothing.
func get(m map[string]any, path []string) any {
	for i, key := range path {
		if i == len(path)-1 {
			return m[key]
		}
		next, ok := m[key].(map[string]any)
		if !ok {
			return nil
		}
		m = next
	}
	return nil
}

// put sets what a decoded text has at a path. It reports false if there is no
// place for it.
func put(m map[string]any, path []string, value any) bool {
	for i, key := range path {
		if i == len(path)-1 {
			m[key] = value
			break
		}
		if m[key] == nil {
			m[key] = make(map[string]any)
		}
		next, ok := m[key].(map[string]any)
		if !ok {
			return false
		}
		m = next
	}
	return true
}
