package scheduler

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"graze/chunk"
)

var seeds = flag.Int("seeds", 12, "how many seeds TestStress runs")

// TestStress has readers that come and go, prefetches, faults of the origin,
// evictions and a store that is full at times. Every read must end, with the
// right bytes or a good reason, and nothing may be left over.
func TestStress(t *testing.T) {
	for seed := range uint64(*seeds) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			spec := imageSpec{
				files:  []int64{1 << 20, 5000, 70000, 1, 300 << 10, 4096, 2 << 20},
				chunk:  1 << (11 + rng.IntN(4)),
				chunks: 1 + rng.IntN(6),
				gap:    int64(rng.IntN(3)) * 40 << 10,
			}
			if rng.IntN(2) == 0 {
				spec.codec, spec.window = chunk.Deflate, true
			}
			cfg := Config{
				Runs:   1 + rng.IntN(8),
				Memory: int64(1+rng.IntN(8)) << 20,
			}
			bubble(t, spec, cfg, func(t *testing.T, g *rig) {
				s := stress{rig: g, seed: seed}
				g.origin.fault = s.fault
				g.origin.rate = 1 << (20 + rng.IntN(8))
				s.run(rng)
				g.wantIdle()
			})
		})
	}
}

type stress struct {
	*rig
	seed uint64
}

// fault breaks every third request or so in one of many ways.
func (s *stress) fault(i int, q originRequest, p []byte) ([]byte, error) {
	rng := rand.New(rand.NewPCG(s.seed, uint64(i)))
	switch rng.IntN(20) {
	case 0, 1:
		return nil, fmt.Errorf("%w: 503", chunk.ErrUnavailable)
	case 2, 3:
		return p[:rng.IntN(len(p))], nil
	case 4:
		p[rng.IntN(len(p))] ^= 1 << rng.IntN(8)
	case 5:
		if at := chunkAt(q, q.off/4096+1); at >= 0 && at+8 < int64(len(p)) {
			copy(p[at:], poison)
		}
	case 6:
		return nil, errors.New("connection reset by peer")
	}
	return p, nil
}

func (s *stress) run(rng *rand.Rand) {
	var wg sync.WaitGroup
	for i := range uint64(16) {
		wg.Go(func() { s.reader(rand.New(rand.NewPCG(s.seed, 1000+i))) })
	}
	wg.Go(func() { s.vandal(rand.New(rand.NewPCG(s.seed, 2000))) })
	for i := range 2 {
		class := chunk.Class(1 + rng.IntN(3))
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(s.t.Context(), time.Duration(1+i*100)*time.Second)
			defer cancel()
			s.check(s.r.Prefetch(ctx, numbers(uint32(s.im.NumSpans())), class), chunk.ErrUnavailable)
		})
	}
	wg.Wait()
	pause(s.t.Context(), time.Hour) // read-ahead that nobody waits for ends too
}

// reader reads some files at random places and some in order.
func (s *stress) reader(rng *rand.Rand) {
	for range 30 {
		ino := uint64(1 + rng.IntN(len(s.im.files)))
		size := s.im.files[ino-1]
		off, n := int64(0), 1+rng.Int64N(min(size, 200<<10))
		if rng.IntN(2) == 0 {
			off = rng.Int64N(size - n + 1)
		}
		ctx, cancel := s.t.Context(), context.CancelFunc(func() {})
		if rng.IntN(3) == 0 {
			ctx, cancel = context.WithTimeout(ctx, time.Duration(rng.IntN(400))*time.Millisecond)
		}
		for ; off < size && ctx.Err() == nil; off += n {
			s.check(s.read(ctx, ino, off, min(n, size-off)), nil)
			if rng.IntN(3) == 0 {
				break
			}
		}
		cancel()
		pause(s.t.Context(), time.Duration(rng.IntN(50))*time.Millisecond)
	}
}

// check fails the test for an error that no fault explains.
func (s *stress) check(err, also error) {
	ok := []error{nil, context.DeadlineExceeded, chunk.ErrCorrupt, also}
	if !slices.ContainsFunc(ok, func(e error) bool { return errors.Is(err, e) }) {
		s.t.Errorf("seed %d: %v", s.seed, err)
	}
}

// vandal evicts chunks and fills the store up.
func (s *stress) vandal(rng *rand.Rand) {
	for range 200 {
		s.store.evict(s.im.refs[rng.IntN(len(s.im.refs))].ID)
		s.store.mu.Lock()
		s.store.full = rng.IntN(4) == 0
		s.store.mu.Unlock()
		if rng.IntN(20) == 0 {
			for _, ref := range s.im.refs {
				s.store.evict(ref.ID)
			}
		}
		pause(s.t.Context(), time.Duration(rng.IntN(40))*time.Millisecond)
	}
}
