package sim

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"graze/chunk"
	"graze/scheduler"
)

var models = flag.Uint64("models", 300, "how many small clusters TestModel runs")

// TestModel runs small clusters whose nodes agree or don't on who is home of
// what, with few slots, and kills nodes at any step. Every read of the others
// must end well and in time, and the registry is asked for a span once, and once
// more at most for each node that was killed and for each further node that
// somebody takes for the home.
func TestModel(t *testing.T) {
	for i := range *models {
		s := *seed*1000003 + i
		ok := t.Run(fmt.Sprintf("seed=%d", s), func(t *testing.T) { runModel(t, s) })
		if !ok && testing.Short() {
			return
		}
	}
}

// FuzzModel is TestModel with seeds that the fuzzer picks.
func FuzzModel(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(runModel)
}

// A model is one small cluster.
type model struct {
	*Cluster
	t       *testing.T
	rng     *rand.Rand
	agree   bool
	crashes []int // steps at which a node is killed
	victims []*Node
	steps   atomic.Int64
	killing sync.WaitGroup
}

func runModel(t *testing.T, s uint64) {
	rng := rand.New(rand.NewPCG(s, 7))
	im := NewImage(s, Shape{
		Bytes: (1 + rng.IntN(12)) * 4 << 10, Chunk: 4 << 10, Chunks: 1 + rng.IntN(3), Windows: rng.IntN(2) == 0,
		Gap: 65 << 10, // what is asked for in one request is counted once
	})
	synctest.Test(t, func(t *testing.T) {
		m := &model{t: t, rng: rng, agree: rng.IntN(3) == 0}
		m.Cluster = New(Config{
			Seed: s, Nodes: 1 + rng.IntN(6), Racks: 1 + rng.IntN(3), MinRack: 1 + rng.IntN(3),
			Image: im, Step: m.step,
			Scheduler: scheduler.Config{
				Runs: 1 + rng.IntN(2), Calls: 1 + rng.IntN(3), Memory: 1 + rng.Int64N(2)<<20,
				Readahead: int64(rng.IntN(2))*64<<10 - 1,
			},
		})
		m.setViews()
		m.planCrashes()
		if err := m.Start(); err != nil {
			t.Fatal(err)
		}
		m.read()
		m.killing.Wait()
		m.check()
		m.Close()
	})
}

// setViews gives nodes that shall not agree views of their own.
func (m *model) setViews() {
	if m.agree {
		return
	}
	for _, n := range m.Nodes {
		view := slices.Clone(m.Nodes)
		m.rng.Shuffle(len(view), func(i, j int) { view[i], view[j] = view[j], view[i] })
		n.See(view[:1+m.rng.IntN(len(view))])
		if m.rng.IntN(2) == 0 {
			n.salt = m.rng.Uint64()
		}
	}
}

func (m *model) planCrashes() {
	order := m.rng.Perm(len(m.Nodes))
	for _, i := range order[:m.rng.IntN(len(m.Nodes))] {
		m.victims = append(m.victims, m.Nodes[i])
		m.crashes = append(m.crashes, 1+m.rng.IntN(30*len(m.Nodes)))
	}
}

// step is called at each step of any node.
func (m *model) step() {
	k := int(m.steps.Add(1))
	for i, at := range m.crashes {
		if at == k {
			m.killing.Go(m.victims[i].Kill)
		}
	}
}

// read has all nodes read all chunks, beginning at about the same time.
func (m *model) read() {
	var wg sync.WaitGroup
	for _, n := range m.Nodes {
		late := time.Duration(m.rng.IntN(3)) * time.Duration(m.rng.IntN(30)) * time.Millisecond
		order := m.Order(m.rng)
		width := 1 + m.rng.IntN(4)
		wg.Go(func() {
			sleep(m.t.Context(), late)
			ctx, cancel := context.WithTimeout(m.t.Context(), time.Minute)
			defer cancel()
			if err := n.Read(ctx, order, width); err != nil && !slices.Contains(m.victims, n) {
				m.t.Errorf("agree %t, %d nodes, crashes at %v: %v", m.agree, len(m.Nodes), m.crashes, err)
			}
		})
	}
	wg.Wait()
}

// check counts how often the registry was asked for each span.
func (m *model) check() {
	crashes := len(m.victims)
	requests := m.Requests()
	spans := slices.Clone(m.image.spans)
	for i := range spans {
		if w := spans[i].Window; w != nil && i%windowsPerChunk == 1 {
			spans = append(spans, w.Span)
		}
	}
	for i := range spans {
		asked := 0
		for _, q := range requests {
			if q.Blob == spans[i].Blob && q.Off <= spans[i].Off && spans[i].Off < q.Off+q.N {
				asked++
			}
		}
		if most := 1 + crashes + m.splits(&spans[i], crashes); asked > most {
			m.t.Errorf("agree %t, %d nodes, crashes at %v: the registry was asked %d times for the span at %d of %s, not %d at most",
				m.agree, len(m.Nodes), m.crashes, asked, spans[i].Off, spans[i].Blob, most)
		}
	}
}

// splits returns how many nodes beyond one may be taken for the cluster's home
// of a span, because views differ.
func (m *model) splits(span *chunk.Span, crashes int) int {
	if m.agree {
		return 0
	}
	homes := make(map[chunk.PeerID]bool)
	for _, n := range m.Nodes {
		var r scheduler.Route
		n.Route(span, &r)
		for _, id := range r.Cluster[:min(len(r.Cluster), 2+crashes)] {
			homes[id] = true
		}
		if len(r.Cluster) < 2+crashes {
			homes[n.id] = true // it runs out of others
		}
	}
	return len(homes) - 1
}
