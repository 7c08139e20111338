package chunkstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
)

// A segment is one file of records. It is shared by counting: the store holds it
// once, as does each reader, and the last to let go closes the file.
type segment struct {
	num uint32
	f   *os.File
	fd  int // of f

	refs    atomic.Int32
	removed atomic.Bool   // unlinked: its space is free once the file is closed
	used    *atomic.Int64 // the store's count of bytes on disk

	size    atomic.Int64 // length of the file
	durable atomic.Int64 // the index log covers all before this offset

	// hot has a bit for each page of the file, set when a record that begins
	// there is read. Small chunks of one page share it.
	hot []atomic.Uint32
	// fresh is set while new chunks are appended: reads don't count as use then.
	fresh atomic.Bool

	round  atomic.Uint64 // when eviction last considered it, or when it was made
	broken bool          // a sync failed, so no more of it is logged; guarded by Store.flushMu
}

// A hotPage is what one bit of segment.hot stands for.
const hotPage = 4096

func newSegment(num uint32, f *os.File, capacity int64, used *atomic.Int64) *segment {
	g := &segment{num: num, f: f, fd: int(f.Fd()), used: used}
	g.hot = make([]atomic.Uint32, capacity/hotPage/32+1)
	g.refs.Store(1)
	return g
}

func segmentPath(dir string, num uint32) string {
	return filepath.Join(dir, fmt.Sprintf("%08d.seg", num))
}

// segmentNumber is the reverse of segmentPath, for a name without the directory.
func segmentNumber(name string) (uint32, bool) {
	digits, ok := strings.CutSuffix(name, ".seg")
	n, err := strconv.ParseUint(digits, 10, 32)
	return uint32(n), ok && err == nil && name == filepath.Base(segmentPath("", uint32(n)))
}

// acquire takes a share in g, unless all have let go of it.
func (g *segment) acquire() bool {
	for {
		n := g.refs.Load()
		if n == 0 {
			return false
		}
		if g.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// release gives a share back.
func (g *segment) release() error {
	if g.refs.Add(-1) > 0 {
		return nil
	}
	err := g.f.Close()
	if g.removed.Load() {
		g.used.Add(-g.size.Load())
	}
	return err
}

// remove unlinks the file and gives back the store's share in it. If the file
// can't be unlinked, it goes on counting as used.
func (g *segment) remove() error {
	err := os.Remove(g.f.Name())
	g.removed.Store(err == nil)
	return errors.Join(err, g.release())
}

// touch notes that the record at off was read.
func (g *segment) touch(off uint32) {
	if g.fresh.Load() {
		return
	}
	page := off / hotPage
	word, bit := page/32, uint32(1)<<(page%32)
	// Loading first keeps readers of a hot chunk from contending for the line.
	if int(word) < len(g.hot) && g.hot[word].Load()&bit == 0 {
		g.hot[word].Or(bit)
	}
}

// isHot reports whether the record at off was read since cool was last called.
func (g *segment) isHot(off uint32) bool {
	page := off / hotPage
	word := page / 32
	return int(word) < len(g.hot) && g.hot[word].Load()&(1<<(page%32)) != 0
}

// cool forgets all reads.
func (g *segment) cool() {
	for i := range g.hot {
		g.hot[i].Store(0)
	}
}
