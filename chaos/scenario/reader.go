package scenario

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
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
	begin time.Time
	mu    sync.Mutex
	list  []read // guarded by mu
}

func (r *records) add(one read, start time.Time) {
	one.at, one.took = start.Sub(r.begin), time.Since(start)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, one)
}

func (r *records) all() []read {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]read(nil), r.list...)
}

// readFiles reads files of a node's mount and compares them, in an order of its
// own. It ends when all are read, or the node's mount has ended along with the
// node: then the reader is gone as well.
func (p *play) readFiles(ctx context.Context, n *node, files []file) {
	is, life := n.running()
	if !is {
		return
	}
	work := make(chan *file)
	var wg sync.WaitGroup
	for range readersOfNode {
		wg.Go(func() {
			for f := range work {
				start := time.Now()
				wrong, err := f.compare(filepath.Join(n.dir, f.path))
				if _, now := n.running(); now != life {
					continue
				}
				p.reads.add(read{node: n.name, file: f.path, wrong: wrong, err: err}, start)
			}
		})
	}
	for _, i := range rand.Perm(len(files)) {
		if _, now := n.running(); now != life || ctx.Err() != nil {
			break
		}
		work <- &files[i]
	}
	close(work)
	wg.Wait()
}

// compare reads a file and has the kernel forget it again.
func (f *file) compare(name string) (wrong bool, err error) {
	in, err := os.Open(name)
	if err != nil {
		return false, err
	}
	defer in.Close()
	h := sha256.New()
	if _, err := io.Copy(h, in); err != nil {
		return false, err
	}
	if err := unix.Fadvise(int(in.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return false, fmt.Errorf("%s: forget: %w", name, err)
	}
	return !bytes.Equal(h.Sum(nil), f.sum[:]), nil
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
