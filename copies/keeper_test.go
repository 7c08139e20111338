package copies

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"graze/chunk"
)

// A world is one node's store, and the images that it may be asked to keep, of one
// chunk of a MiB a span. Of the spans it is the first home of every fourth, and the
// second of those that follow them.
type world struct {
	mu     sync.Mutex // guards what follows
	spans  map[string]int
	shift  uint32 // which of four spans the node is the first home of
	have   map[chunk.ID]bool
	pinned map[string][]chunk.ID
	asked  []string // spans, in the order in which they were fetched
	down   error    // what fetches fail with
	idle   time.Duration
	budget int64
	whole  bool
	opened int
}

func newWorld() *world {
	return &world{
		spans: map[string]int{"a@1": 40, "b@2": 40}, have: make(map[chunk.ID]bool), pinned: make(map[string][]chunk.ID),
		idle: time.Hour, budget: 1 << 30,
	}
}

func (w *world) Pin(owner string, ids iter.Seq[chunk.ID]) {
	list := slices.Collect(ids)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pinned[owner] = append(w.pinned[owner], list...)
}

func (w *world) Unpin(owner string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pinned, owner)
}

// pins is how many chunks are pinned.
func (w *world) pins() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, list := range w.pinned {
		n += len(list)
	}
	return n
}

// fetched returns the spans that were fetched, in this order.
func (w *world) fetched() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.asked)
}

// images is how many images are open.
func (w *world) images() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.opened
}

func (w *world) open(_ context.Context, ref string) (Image, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.spans[ref] == 0 {
		return nil, errors.New("no such image")
	}
	w.opened++
	return &fakeImage{w: w, ref: ref, n: w.spans[ref]}, nil
}

type fakeImage struct {
	w     *world
	ref   string
	n     int
	shift uint32 // that Share has used
}

func (f *fakeImage) id(n uint32) chunk.ID { return chunk.SHA256.Sum(fmt.Append(nil, f.ref, n)) }

func (f *fakeImage) View() string { return "view of " + f.ref }
func (f *fakeImage) Spans() int   { return f.n }

func (f *fakeImage) Share(n int) (list []uint32) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.shift = f.w.shift
	for rank := range uint32(n) {
		for span := range uint32(f.n) {
			if span%4 == (f.shift+rank)%4 {
				list = append(list, span)
			}
		}
	}
	return list
}

func (f *fakeImage) Changed() bool {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	return f.shift != f.w.shift
}

func (f *fakeImage) Bytes(uint32) int64 { return 1 << 20 }

func (f *fakeImage) Chunks(n uint32) iter.Seq[chunk.ID] {
	return func(yield func(chunk.ID) bool) { yield(f.id(n)) }
}

func (f *fakeImage) Missing(n uint32) bool {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	return !f.w.have[f.id(n)]
}

func (f *fakeImage) Fetch(_ context.Context, spans []uint32) error {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	if f.w.down != nil {
		return f.w.down
	}
	for _, n := range spans {
		f.w.have[f.id(n)] = true
		f.w.asked = append(f.w.asked, fmt.Sprint(f.ref[:1], n))
	}
	return nil
}

func (f *fakeImage) Close() error {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.w.opened--
	return nil
}

// keep runs a Keeper in a bubble of time.
func keep(t *testing.T, w *world, rate int64, test func(t *testing.T, k *Keeper)) {
	synctest.Test(t, func(t *testing.T) {
		k := NewKeeper(KeeperConfig{
			Open: w.open, Store: w, Copies: 2, Rate: rate,
			Budget: func() int64 { return w.budget },
			Whole:  func(string) bool { return w.whole },
			Idle: func() time.Duration {
				w.mu.Lock()
				defer w.mu.Unlock()
				return w.idle
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- k.Run(ctx) }()
		test(t, k)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if w.images() != 0 || w.pins() != 0 {
			t.Errorf("%d images were left open, %d chunks pinned", w.images(), w.pins())
		}
	})
}

// report asks the Keeper to keep an image, and counts what it says is there.
func report(t *testing.T, k *Keeper, ref string) (r Report, held int) {
	t.Helper()
	r, err := k.Keep(ref, 0)
	if err != nil {
		t.Fatal(err)
	}
	for n := range uint32(r.Spans) {
		if r.Held.Has(n) {
			held++
		}
	}
	return r, held
}

func TestKeeperCompletesItsShare(t *testing.T) {
	w := newWorld()
	keep(t, w, 0, func(t *testing.T, k *Keeper) {
		report(t, k, "a@1")
		time.Sleep(time.Second)
		r, held := report(t, k, "a@1")
		if held != 20 || r.Spans != 40 || r.Full || r.Error != "" || w.pins() != 20 {
			t.Errorf("%d spans of %d are held, %d pinned: %+v", held, r.Spans, w.pins(), r)
		}
		for i, span := range w.fetched() {
			if first := i < 10; first != slices.Contains([]string{"a0", "a4", "a8", "a12", "a16", "a20", "a24", "a28", "a32", "a36"}, span) {
				t.Fatalf("spans were fetched in the order %v", w.fetched())
			}
		}

		// A chunk that is lost comes back. Nothing else is fetched.
		w.mu.Lock()
		delete(w.have, (&fakeImage{ref: "a@1"}).id(4))
		w.mu.Unlock()
		time.Sleep(again + time.Second)
		if w.fetched()[20] != "a4" || len(w.fetched()) != 21 {
			t.Errorf("after a loss, %v was fetched", w.fetched()[20:])
		}

		// The members change: what the node is home of now is fetched, the rest let go.
		w.mu.Lock()
		w.shift = 1
		w.mu.Unlock()
		k.Refresh()
		time.Sleep(time.Second)
		if _, held := report(t, k, "a@1"); held != 20 || w.pins() != 20 || len(w.fetched()) != 31 {
			t.Errorf("after a change %d spans are held, %d pinned, %d fetched", held, w.pins(), len(w.fetched()))
		}

		// Nobody asks for the image any more.
		time.Sleep(ShareLease + time.Second)
		if w.pins() != 0 || w.images() != 0 {
			t.Errorf("after the lease %d chunks are pinned, %d images open", w.pins(), w.images())
		}
	})
}

// TestKeeperSeesWhatReadersBring has a reader read all of the share while the Keeper
// holds back for it.
func TestKeeperSeesWhatReadersBring(t *testing.T) {
	w := newWorld()
	w.idle = 0
	keep(t, w, 0, func(t *testing.T, k *Keeper) {
		report(t, k, "a@1")
		time.Sleep(time.Second)
		w.mu.Lock()
		for n := range uint32(40) {
			w.have[(&fakeImage{ref: "a@1"}).id(n)] = true
		}
		w.mu.Unlock()
		time.Sleep(2 * maxHold)
		if _, held := report(t, k, "a@1"); held != 20 {
			t.Errorf("%d spans are held", held)
		}
	})
}

func TestKeeperPaces(t *testing.T) {
	w := newWorld()
	keep(t, w, 1<<20, func(t *testing.T, k *Keeper) {
		report(t, k, "a@1")
		time.Sleep(9 * time.Second) // a batch has 4 MiB, and the first needs no wait
		if len(w.fetched()) != 12 {
			t.Errorf("%d MiB were fetched in 9 s at 1 MiB/s", len(w.fetched()))
		}
		w.mu.Lock()
		w.idle = 0 // readers wait
		w.mu.Unlock()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if len(w.fetched()) != 12 {
			t.Errorf("%d MiB were fetched while readers waited", len(w.fetched())-12)
		}
		time.Sleep(20 * time.Second)
		if len(w.fetched()) != 20 {
			t.Error("readers have stopped it for good")
		}
	})
}

func TestKeeperFewestCopiesFirst(t *testing.T) {
	w := newWorld()
	w.down = errors.New("registry is down")
	keep(t, w, 0, func(t *testing.T, k *Keeper) {
		for ref, copies := range map[string]int{"a@1": 1, "b@2": 0} {
			if _, err := k.Keep(ref, copies); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		if r, held := report(t, k, "a@1"); held != 0 || !strings.Contains(r.Error, "down") {
			t.Errorf("in an outage: %d held, %+v", held, r)
		}
		if _, err := k.Keep("a@1", 1); err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		w.down = nil
		w.mu.Unlock()
		time.Sleep(retryOpen + time.Second)
		for i, span := range w.fetched() {
			if strings.HasPrefix(span, "b") != (i < 20) {
				t.Fatalf("spans were fetched in the order %v", w.fetched())
			}
		}
		if r, held := report(t, k, "a@1"); held != 20 || r.Error != "" {
			t.Errorf("after the outage: %d held, %+v", held, r)
		}
	})
}

// TestKeeperWhole has the node keep all of an image for another reason: nothing is
// fetched or pinned for the share, and what is there counts.
func TestKeeperWhole(t *testing.T) {
	w := newWorld()
	w.whole = true
	keep(t, w, 0, func(t *testing.T, k *Keeper) {
		report(t, k, "a@1")
		time.Sleep(time.Second)
		if r, held := report(t, k, "a@1"); held != 0 || r.Full || r.View == "" {
			t.Errorf("of an image that is not there: %d held, %+v", held, r)
		}
		w.mu.Lock()
		for n := range uint32(40) {
			w.have[(&fakeImage{ref: "a@1"}).id(n)] = true
		}
		w.mu.Unlock()
		time.Sleep(busyRound)
		if _, held := report(t, k, "a@1"); held != 40 || len(w.fetched()) != 0 || w.pins() != 0 {
			t.Errorf("%d spans are held, %d were fetched, %d pinned", held, len(w.fetched()), w.pins())
		}
	})
}

func TestKeeperBudget(t *testing.T) {
	w := newWorld()
	w.budget = 25 << 20
	keep(t, w, 0, func(t *testing.T, k *Keeper) {
		report(t, k, "a@1")
		time.Sleep(time.Second)
		report(t, k, "b@2")
		report(t, k, "none@3")
		time.Sleep(time.Second)
		a, heldA := report(t, k, "a@1")
		b, heldB := report(t, k, "b@2")
		if a.Full || heldA != 20 || !b.Full || heldB != 5 || w.pins() != 25 {
			t.Errorf("of a budget of 25: %d and %d held, full %v and %v, %d pinned", heldA, heldB, a.Full, b.Full, w.pins())
		}
		if r, _ := report(t, k, "none@3"); r.Error != "no such image" || r.View != "" {
			t.Errorf("an image that can't be opened: %+v", r)
		}
	})
}
