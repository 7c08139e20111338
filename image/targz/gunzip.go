package targz

import (
	"bytes"
	"io"

	"graze/chunk"
	"graze/image/inflate"
)

const (
	// restartGap is how far apart deflate checkpoints are at least, in decoded
	// bytes. By then everything that can refer to a checkpoint's window has
	// passed, so that only one has to be watched at a time.
	restartGap = inflate.WindowSize
	// memberGap is how far apart the members that can begin a span are at
	// least, in decoded bytes.
	memberGap = 4 << 10
	// maxTrial bounds the encoded bytes that are kept to try out a checkpoint.
	maxTrial = 64 << 10
	// decodeAhead is how many encoded bytes beyond those that a decoded byte
	// depends on a decoder may ask for before it hands the byte out. The
	// trailer of the last member is as long.
	decodeAhead = inflate.TrailerLen
)

// A gunzip decodes a gzip stream, verifies its checksums and finds the places
// where decoding can begin.
type gunzip struct {
	in  inflate.Input
	gz  inflate.Gzip
	err error // comes after what gz has decoded

	wanted   int64      // deflate checkpoints are wanted from this encoded offset on
	restarts []*restart // by rising at; the first is at or before the reader's place
	watched  *restart   // the last one, while its window is being watched
	saved    int64      // end of the encoded bytes that were seen for it
	enc, dec []byte     // what it is to be tried with
}

func newGunzip(r io.Reader) *gunzip {
	g := new(gunzip)
	g.in.Reset(r, 0)
	g.gz.Deflate().Observe(g)
	g.err = g.member()
	return g
}

// want says from which encoded offset on checkpoints are of use.
func (g *gunzip) want(off int64) { g.wanted = off }

// Read returns decoded bytes.
func (g *gunzip) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n := copy(p, g.peek(len(p)))
	if n == 0 {
		return 0, g.err
	}
	g.gz.Discard(n)
	return n, nil
}

// peek returns the next bytes, at most n and at least one, or none if g.err says
// why.
func (g *gunzip) peek(n int) []byte {
	for g.err == nil {
		p, err := g.gz.Peek(n)
		if err == nil {
			return p
		}
		if err == io.EOF {
			g.endWatch()
			err = g.member()
		}
		g.err = err
	}
	return nil
}

// pos returns the reader's place in the decoded stream.
func (g *gunzip) pos() int64 { return g.gz.Offset() }

// needed returns how many encoded bytes are enough to decode all that was read.
func (g *gunzip) needed() int64 { return g.in.Offset() + decodeAhead }

// restart returns the last place at or before the reader's where decoding can
// begin. It decodes on if all was read, because that place may be right here.
func (g *gunzip) restart() *restart {
	g.peek(1)
	g.dropRestarts()
	return g.restarts[0]
}

// cut returns false: a chunk may end in one span and begin in the next, because
// a deflate stream can be left and entered anywhere in between.
func (g *gunzip) cut(int64, int64) bool { return false }

// rest returns what follows the last member.
func (g *gunzip) rest() io.Reader { return &g.in }

// Decoded ends the watch on a checkpoint's window once nothing can refer to it,
// and makes a checkpoint of a block that starts here. It is called by the
// decoder, with what it has decoded since the last call.
func (g *gunzip) Decoded(p []byte) {
	z := g.gz.Deflate()
	if c := g.watched; c != nil {
		enc := z.Encoded(g.saved)
		g.saved += int64(len(enc))
		if len(g.enc) < maxTrial {
			g.enc = append(g.enc, enc...)
			g.dec = append(g.dec, p...)
		}
		if z.Decoded()-c.at >= inflate.WindowSize {
			g.endWatch()
		}
	}
	at, pos := z.Decoded(), z.BitOffset()
	if !z.Block() || g.watched != nil || pos>>3 < g.wanted || at < g.lastRestart()+restartGap {
		return
	}
	c := &restart{
		at:     at,
		off:    pos >> 3,
		codec:  chunk.Deflate,
		skip:   uint8(pos & 7),
		window: bytes.Clone(z.Window()),
		refs:   z.Watch(),
	}
	g.add(c)
	g.watched, g.saved = c, c.off
}

// lastRestart returns where the last restart is in the decoded stream.
func (g *gunzip) lastRestart() int64 { return g.restarts[len(g.restarts)-1].at }

// add appends a restart.
func (g *gunzip) add(c *restart) {
	g.dropRestarts()
	g.restarts = append(g.restarts, c)
}

// dropRestarts forgets all before the last one at or before the reader's place.
func (g *gunzip) dropRestarts() {
	for len(g.restarts) > 1 && g.restarts[1].at <= g.pos() {
		g.restarts = g.restarts[1:]
	}
}

// endWatch completes the checkpoint that is watched, if there is one.
func (g *gunzip) endWatch() {
	c := g.watched
	if c == nil {
		return
	}
	if len(g.enc) < maxTrial {
		c.enc, c.dec = bytes.Clone(g.enc), bytes.Clone(g.dec)
	}
	g.enc, g.dec = g.enc[:0], g.dec[:0]
	g.gz.Deflate().Unwatch()
	g.watched = nil
}

// member goes on to the next member. At the end of the stream it returns io.EOF.
func (g *gunzip) member() error {
	off, at := g.in.Offset(), g.gz.Offset()
	if err := g.gz.Next(&g.in); err != nil {
		return err // if io.EOF, what may follow is for drain to judge
	}
	c := &restart{at: at, off: off, codec: chunk.Gzip}
	if n := len(g.restarts); n == 0 || at >= g.lastRestart()+memberGap {
		g.add(c)
	} else if g.lastRestart() == at {
		// Members without content are left to the span before.
		g.restarts[n-1] = c
	}
	return nil
}
