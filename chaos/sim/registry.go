package sim

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"graze/chunk"
)

// A registry is the origin of all nodes.
type registry struct {
	blobs   map[chunk.Blob][]byte
	latency time.Duration
	link    link

	mu       sync.Mutex
	down     bool
	bytes    int64
	requests []Range
}

// A Range is a stretch of a blob that was asked for.
type Range struct {
	Blob   chunk.Blob
	Off, N int64
}

// A view of the registry by one node. It implements scheduler.Origin.
type originOf struct {
	r *registry
	n *Node
}

// ReadRange implements scheduler.Origin.
func (o originOf) ReadRange(ctx context.Context, blob chunk.Blob, off, n int64) (io.ReadCloser, error) {
	o.n.c.step()
	o.r.mu.Lock()
	down := o.r.down
	o.r.requests = append(o.r.requests, Range{blob, off, n})
	o.r.mu.Unlock()
	if err := sleep(ctx, o.r.latency); err != nil {
		return nil, err
	}
	p := o.r.blobs[blob]
	if down || off < 0 || n <= 0 || off+n > int64(len(p)) {
		return nil, fmt.Errorf("%w: the registry does not answer for %d bytes at %d", chunk.ErrUnavailable, n, off)
	}
	return io.NopCloser(&originBody{ctx: ctx, o: o, p: p[off : off+n]}), nil
}

// An originBody is the rest of an answer. It arrives as the links allow.
type originBody struct {
	ctx   context.Context
	o     originOf
	p     []byte
	ready int // bytes of p that have arrived
}

func (b *originBody) Read(p []byte) (int, error) {
	if len(b.p) == 0 {
		return 0, io.EOF
	}
	if b.ready == 0 {
		n := min(piece, len(b.p))
		for _, l := range []*link{&b.o.r.link, &b.o.n.down} {
			if err := l.carry(b.ctx, noClass, n); err != nil {
				return 0, err
			}
		}
		b.o.r.mu.Lock()
		b.o.r.bytes += int64(n)
		b.o.r.mu.Unlock()
		b.ready = n
	}
	n := copy(p, b.p[:b.ready])
	b.p, b.ready = b.p[n:], b.ready-n
	return n, nil
}
