package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"graze/chunk"
	"graze/chunkstore"
	"graze/fusefs"
)

// A Drill turns mechanisms off, so that a scenario can show what each is for. Its
// zero value turns nothing off, and is what nodes have that matter to somebody.
type Drill struct {
	// UncachedReads: what can't be kept can't be read.
	UncachedReads bool
	// Eviction: the store makes no room.
	Eviction bool
	// Certificates between nodes have an age, so that clocks must agree.
	Certificates bool
	// RetryAfter: registries are asked again as after any other failure.
	RetryAfter bool
}

// ParseDrill returns the Drill that turns off what is named.
func ParseDrill(names []string) (d Drill, err error) {
	for _, name := range names {
		switch name {
		case "uncached-reads":
			d.UncachedReads = true
		case "eviction":
			d.Eviction = true
		case "ageless-certificates":
			d.Certificates = true
		case "retry-after":
			d.RetryAfter = true
		default:
			return d, fmt.Errorf("uncached-reads, eviction, ageless-certificates and retry-after can be turned off, not %q", name)
		}
	}
	return d, nil
}

// apply has the parts of a node without what is turned off.
func (d Drill) apply(cfg *Config) {
	if d.RetryAfter {
		cfg.Origin.Retry.MaxRetryAfter = time.Nanosecond
	}
}

// errNotKept: the drill wants a read to fail.
var errNotKept = errors.New("the chunk is not kept, and uncached reads are turned off")

// keptFiles reads files of which every chunk is in the store.
type keptFiles struct {
	fusefs.Files
	view  *View
	store *chunkstore.Store
}

// ReadAt implements fusefs.Files.
func (k keptFiles) ReadAt(ctx context.Context, ino uint64, p []byte, off int64) (int, error) {
	n, err := k.Files.ReadAt(ctx, ino, p, off)
	for e := range k.view.Extents(ino, off, int64(n)) {
		if ref, _ := k.view.Chunk(e.Chunk); !ref.ID.IsZero() && !k.store.Has(ref.ID) {
			return 0, &chunk.Error{Op: "read", What: ref.String(), Err: errNotKept}
		}
	}
	return n, err
}
