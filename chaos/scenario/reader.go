package scenario

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// readersOfNode is how many files of a node's mount are read at a time.
const readersOfNode = 4

// A read is one file that was read, or a mount that was asked for.
type read struct {
	node  string
	file  string // "" for a mount
	at    time.Duration
	took  time.Duration
	wrong bool  // what came is not what must be there
	err   error // nil, if all was read
}

// records collect reads.
type records struct {
	begin  time.Time
	failed func() // called for each that fails
	mu     sync.Mutex
	list   []read // guarded by mu
}

func (r *records) add(one read, start time.Time) {
	one.at = start.Sub(r.begin)
	if one.err != nil {
		r.failed()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, one)
}

func (r *records) all() []read {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]read(nil), r.list...)
}

// readFiles has files of a node's mount read and compared, in an order of its own.
// It ends when all are read, or when the node is killed: then the reader is gone
// as well.
func (p *play) readFiles(ctx context.Context, n *node, files []file) {
	lives, dead := n.life()
	if dead {
		return
	}
	order := make([]*file, len(files))
	for i, k := range rand.Perm(len(files)) {
		order[i] = &files[k]
	}
	start := time.Now()
	err := runReader(ctx, p.cluster.binary, n.dir, order, func(r result) {
		if now, _ := n.life(); now != lives {
			return
		}
		one := read{node: n.name, file: r.Path, wrong: r.Wrong, took: r.Took}
		if r.Err != "" {
			one.err = errors.New(r.Err)
		}
		p.reads.add(one, r.Begin)
	})
	if now, _ := n.life(); err != nil && now == lives && ctx.Err() == nil {
		p.reads.add(read{node: n.name, took: time.Since(start), err: fmt.Errorf("the reader has ended: %w", err)}, start)
	}
}

// readAgain reads files again and again until the steps are over.
func (p *play) readAgain(ctx context.Context, n *node, r *Read, files []file) {
	tick := time.NewTicker(time.Duration(r.Every))
	defer tick.Stop()
	for {
		p.readFiles(ctx, n, files)
		select {
		case <-tick.C:
		case <-p.over.Done():
			return
		}
		if _, dead := n.life(); r.Fresh && !dead {
			p.remount(ctx, n)
		}
	}
}

// part returns the files that node i of n reads.
func (r *Read) part(files []file, i, n int) []file {
	share := r.Share
	if share == 0 {
		share = 1
	}
	count := max(1, int(share*float64(len(files))))
	if !r.Own {
		return files[:count]
	}
	own := make([]file, 0, count)
	for k := range count {
		own = append(own, files[(i*len(files)/n+k)%len(files)])
	}
	return own
}
