package node

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"graze/chunk"
)

// TestVault passes secrets from one process to the next.
func TestVault(t *testing.T) {
	var first vault
	if err := first.write([]byte("lost")); err != nil {
		t.Errorf("before it is open: %v", err)
	}
	if p, err := first.open(nil); err != nil || len(p) > 0 {
		t.Fatalf("new: %q, %v", p, err)
	}
	for _, text := range []string{"a long text", "short", ""} {
		if err := first.write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		var second vault
		if p, err := second.open(first.descriptor()); err != nil || string(p) != text {
			t.Errorf("%q, %v; want %q", p, err, text)
		}
	}
	// Killed while writing.
	if err := first.write([]byte("a long text")); err != nil {
		t.Fatal(err)
	}
	if _, err := first.descriptor().WriteAt([]byte("b"), 40); err != nil {
		t.Fatal(err)
	}
	var second vault
	if p, err := second.open(first.descriptor()); !errors.Is(err, chunk.ErrCorrupt) || len(p) > 0 {
		t.Errorf("torn: %q, %v", p, err)
	}
	if err := second.write(make([]byte, maxVault+1)); err == nil {
		t.Error("too much is taken")
	}
	first.descriptor().Close()
}

// A fakeHolder holds names.
type fakeHolder struct{ held map[string]*os.File }

func (h *fakeHolder) Put(name string, f *os.File) error {
	h.held[name] = f
	return nil
}

func (h *fakeHolder) Drop(name string) error {
	delete(h.held, name)
	return nil
}

func (h *fakeHolder) Held() map[string]*os.File { return maps.Clone(h.held) }
func (h *fakeHolder) Lost() <-chan struct{}     { return nil }

// names returns what is held.
func (h *fakeHolder) names() string { return strings.Join(slices.Sorted(maps.Keys(h.held)), " ") }

// TestCompanion holds credentials for as long as there are mounts.
func TestCompanion(t *testing.T) {
	file := os.Stdin // which nobody reads from
	for _, row := range []struct {
		name  string
		held  string // at first
		steps []string
		want  []string
	}{
		{"no mount", "", []string{"accompany"}, []string{""}},
		{"mounts come and go", "", []string{"accompany", "put mount-1", "put mount-2", "drop mount-1", "drop mount-2", "put mount-3"},
			[]string{"", "credentials mount-1", "credentials mount-1 mount-2", "credentials mount-2", "", "credentials mount-3"}},
		{"a mount came first", "", []string{"put mount-1", "accompany"}, []string{"mount-1", "credentials mount-1"}},
		{"held, with a mount", "credentials mount-1", []string{"adopt mount-1", "accompany held", "escort", "drop mount-1"},
			[]string{"credentials mount-1", "credentials mount-1", "credentials mount-1", ""}},
	} {
		t.Run(row.name, func(t *testing.T) {
			h := &fakeHolder{make(map[string]*os.File)}
			for _, name := range strings.Fields(row.held) {
				h.held[name] = file
			}
			k := newKeeping(func(context.Context) (Holder, error) { return h, nil }, slog.New(slog.DiscardHandler))
			k.begin(t.Context())
			for i, step := range row.steps {
				verb, name, _ := strings.Cut(step, " ")
				switch verb {
				case "put":
					if err := k.put(name, file); err != nil {
						t.Fatal(err)
					}
				case "adopt":
					k.adopt(name, file)
				case "drop":
					k.drop(name)
				case "accompany":
					k.accompany(vaultName, file, name == "held")
				case "escort":
					k.escort()
				}
				if got := h.names(); got != row.want[i] {
					t.Errorf("after %q: held %q, want %q", step, got, row.want[i])
				}
			}
		})
	}
}
