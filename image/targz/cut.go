package targz

import (
	"crypto/sha256"
	"hash"
	"io"

	"github.com/cespare/xxhash/v2"

	"graze/image/codec"
)

// packsPerChunk is how many packs there are for the size of a chunk, on average,
// where no file is large. The more there are, the more of the files that two layers
// share lies in the same chunks in both; docs/measurements.md has figures.
const packsPerChunk = 4

// A cutter reads the decoded layer, cuts it into chunks and groups these into
// spans.
//
// A file that is larger than a chunk is cut at multiples of the chunk size from
// its own beginning, so that the same file gives the same chunks wherever it
// lies in whichever layer. The files that are no larger are packed: a chunk
// begins with the data of one, and goes on with all that follows in the tar,
// headers included, as long as whole files fit and none begins a pack.
type cutter struct {
	src  source
	out  *writer
	cfg  Config
	diff hash.Hash
	try  codec.Decoder

	open  bool
	buf   []byte // the open chunk, and what was read after it
	start int64  // where it begins in the decoded stream
	end   int64  // where the last file in it ends
	span  spanRow
	from  *restart // where the open span begins; nil before the first
}

func newCutter(src source, out *writer, cfg Config) *cutter {
	return &cutter{src: src, out: out, cfg: cfg, diff: sha256.New(), buf: make([]byte, 0, cfg.ChunkSize)}
}

// Read reads what lies between the data of files.
func (c *cutter) Read(p []byte) (int, error) {
	n, err := c.src.Read(p)
	p = p[:n]
	c.diff.Write(p)
	if c.open {
		if len(c.buf)+len(p) > cap(c.buf) || c.atCut() {
			c.endChunk()
		} else {
			c.buf = append(c.buf, p...)
		}
	}
	return n, err
}

// atCut reports whether the source wants the open chunk to end here.
func (c *cutter) atCut() bool {
	return c.src.pos() > c.start && c.src.cut(c.from.off, c.cfg.SpanSize)
}

// beginsPack reports whether a pack begins with a file of n bytes. That depends on
// the file alone, so that in layers which have some stretch of files in common the
// packs become the same again soon after the stretch has begun. It is so about
// every quarter of a chunk's size.
func beginsPack(name string, n, size int64) bool {
	chance := xxhash.Sum64String(name) >> 32
	return chance*uint64(size)/packsPerChunk < uint64(n+blockSize)<<32
}

// file reads the data of a file, the next n bytes, into chunks.
func (c *cutter) file(name string, n int64) error {
	size := int64(cap(c.buf))
	large := n > size
	if c.open && (large || c.src.pos()+n > c.start+size || beginsPack(name, n, size)) {
		c.endChunk()
	}
	for off := int64(0); off < n; {
		if !c.open {
			if err := c.beginChunk(); err != nil {
				return err
			}
		}
		want := n - off
		if large {
			want = min(want, size-off%size)
		}
		k, err := c.data(int(want))
		if err != nil {
			return noEOF(err)
		}
		off += int64(k)
		if k < int(want) || large || c.atCut() {
			c.endChunk()
		}
	}
	return nil
}

// data reads n bytes of a file into the open chunk, or fewer if it should end
// earlier.
func (c *cutter) data(n int) (int, error) {
	had := len(c.buf)
	for len(c.buf) < had+n {
		k, err := c.src.Read(c.buf[len(c.buf) : had+n])
		c.diff.Write(c.buf[len(c.buf) : len(c.buf)+k])
		c.buf = c.buf[:len(c.buf)+k]
		if k == 0 && err != nil {
			return len(c.buf) - had, err
		}
		if c.atCut() {
			break
		}
	}
	c.end = c.src.pos()
	c.span.len = c.src.needed() - c.span.off
	return len(c.buf) - had, nil
}

// beginChunk begins a chunk at the reader's place, and a span if the open one
// has reached its size.
func (c *cutter) beginChunk() error {
	c.open, c.start = true, c.src.pos()
	r := c.src.restart()
	if c.from != nil && (r.off <= c.from.off || c.src.needed()-c.from.off < c.cfg.SpanSize) {
		return nil
	}
	if err := c.endSpan(); err != nil {
		return err
	}
	c.from = r
	c.span = spanRow{codec: r.codec, skip: r.skip, off: r.off, lead: c.start - r.at}
	// Not each checkpoint is worth the window that must be kept for it: only
	// those near the place where the next span will begin.
	c.src.want(r.off + c.cfg.SpanSize - c.cfg.SpanSize/4)
	return nil
}

// endChunk ends the open chunk where its last file ends.
func (c *cutter) endChunk() {
	p := c.buf[:c.end-c.start]
	v := c.cfg.Algorithm.Name(p)
	c.out.chunk(c.start, v.Ref())
	if c.cfg.Keep != nil {
		c.cfg.Keep(v)
	}
	c.span.count++
	c.open, c.buf = false, c.buf[:0]
}

// endSpan ends the open span, if there is one. By now the checkpoint that it
// begins with is complete: that it is not the last one shows that its window is
// no longer referred to.
func (c *cutter) endSpan() error {
	if c.from == nil {
		return nil
	}
	window := c.from.trim()
	if err := c.from.try(&c.try, window); err != nil {
		return err
	}
	return c.out.span(c.span, window)
}

// finish reads the source to its end, then ends what is open.
func (c *cutter) finish() error {
	if c.open {
		c.endChunk()
	}
	if _, err := io.Copy(io.Discard, c); err != nil {
		return err
	}
	return c.endSpan()
}
