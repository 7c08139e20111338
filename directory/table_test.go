package directory

import (
	"fmt"
	"slices"
	"testing"

	"graze/chunk"
)

func nodesOf(t *table, key Key) []chunk.PeerID { return t.appendHolders(nil, key) }

func TestTableRemembersTheLastHolders(t *testing.T) {
	tab := newTable(100)
	for i := range 6 {
		tab.note(chunk.PeerID(fmt.Sprint("n", i)), []Key{1})
	}
	tab.note("n3", []Key{1, 2})
	for key, want := range map[Key][]chunk.PeerID{1: {"n3", "n5", "n4", "n2"}, 2: {"n3"}, 3: nil} {
		if got := nodesOf(tab, key); !slices.Equal(got, want) {
			t.Errorf("holders of %d are %v, not %v", key, got, want)
		}
	}
}

// A table stays within its limit, and keeps what is used.
func TestTableIsBounded(t *testing.T) {
	tab := newTable(100)
	for key := range Key(1000) {
		tab.note("n", []Key{key})
		nodesOf(tab, 0)
		if n := tab.len(); n > 100 {
			t.Fatalf("%d chunks are known", n)
		}
	}
	for _, key := range []Key{0, 999} {
		if len(nodesOf(tab, key)) == 0 {
			t.Errorf("%d is forgotten", key)
		}
	}
	if len(nodesOf(tab, 500)) > 0 {
		t.Error("what was not used is still known")
	}
}

func TestTableOfManyNodes(t *testing.T) {
	tab := newTable(100)
	for i := range maxNodes + 10 {
		tab.note(chunk.PeerID(fmt.Sprint("n", i)), []Key{Key(i)})
	}
	want := chunk.PeerID(fmt.Sprint("n", maxNodes+9))
	if got := nodesOf(tab, maxNodes+9); !slices.Equal(got, []chunk.PeerID{want}) {
		t.Errorf("the holder is %v, not %s", got, want)
	}
	if len(tab.nodes) > maxNodes {
		t.Errorf("%d nodes are told apart", len(tab.nodes))
	}
}

func BenchmarkTable(b *testing.B) {
	tab := newTable(1 << 18)
	keys := make([]Key, 512)
	var next Key
	b.Run("note", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for i := range keys {
				next += 0x9e3779b97f4a7c15
				keys[i] = next
			}
			tab.note("n", keys)
		}
	})
	b.Run("holders", func(b *testing.B) {
		b.ReportAllocs()
		var dst [maxHolders]chunk.PeerID
		for b.Loop() {
			tab.appendHolders(dst[:0], keys[0])
		}
	})
}
