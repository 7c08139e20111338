package seed

import (
	"context"
	"errors"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"graze/chunk"
)

// A world has images of one chunk a span, and a store.
type world struct {
	mu     sync.Mutex // guards what follows
	spans  map[string]int
	have   map[chunk.ID]bool
	pinned map[string]map[chunk.ID]bool
	asked  []uint32
	fail   map[uint32]error
	lose   bool // the store keeps nothing
	block  bool // fetches wait for their context
	opened int  // images that are open
}

func newWorld() *world {
	return &world{
		spans:  map[string]int{"a@sha256:1": 200, "b@sha256:2": 10},
		have:   make(map[chunk.ID]bool),
		pinned: make(map[string]map[chunk.ID]bool),
		fail:   make(map[uint32]error),
	}
}

func id(ref string, n uint32) chunk.ID {
	return chunk.SHA256.Sum([]byte(ref + string(rune(n))))
}

func (w *world) Pin(owner string, ids iter.Seq[chunk.ID]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pinned[owner] = maps.Collect(func(yield func(chunk.ID, bool) bool) {
		for id := range ids {
			if !yield(id, true) {
				return
			}
		}
	})
}

func (w *world) Unpin(owner string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pinned, owner)
}

func (w *world) open(_ context.Context, ref string) (Image, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, ok := w.spans[ref]
	if !ok {
		return nil, errors.New("no such image")
	}
	w.opened++
	return &fakeImage{w, ref, n}, nil
}

type fakeImage struct {
	w   *world
	ref string
	n   int
}

func (f *fakeImage) Chunks() iter.Seq[chunk.ID] {
	return func(yield func(chunk.ID) bool) {
		for i := range f.n {
			if !yield(id(f.ref, uint32(i))) {
				return
			}
		}
	}
}

func (f *fakeImage) Spans() []uint32 {
	var list []uint32
	for i := range f.n {
		list = append(list, uint32(f.n-1-i))
	}
	return list
}

func (f *fakeImage) Bytes() int64 { return int64(f.n) }

func (f *fakeImage) Missing(n uint32) bool {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	return !f.w.have[id(f.ref, n)]
}

func (f *fakeImage) Fetch(ctx context.Context, spans []uint32) (err error) {
	f.w.mu.Lock()
	block := f.w.block
	f.w.mu.Unlock()
	if block {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	time.Sleep(time.Second)
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	for _, n := range spans {
		f.w.asked = append(f.w.asked, n)
		if f.w.fail[n] != nil {
			err = f.w.fail[n]
		} else if !f.w.lose {
			f.w.have[id(f.ref, n)] = true
		}
	}
	return err
}

func (f *fakeImage) Close() error {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.w.opened--
	return nil
}

// keep runs a Keeper in a bubble of time.
func keep(t *testing.T, w *world, test func(t *testing.T, k *Keeper, file string)) {
	file := filepath.Join(t.TempDir(), "seeds.json")
	synctest.Test(t, func(t *testing.T) {
		k, err := New(Config{File: file, Open: w.open, Store: w, Budget: func() int64 { return 210 }})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- k.Run(ctx) }()
		test(t, k, file)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if w.opened != 0 {
			t.Errorf("%d images were left open", w.opened)
		}
	})
}

func TestComplete(t *testing.T) {
	w := newWorld()
	keep(t, w, func(t *testing.T, k *Keeper, file string) {
		for ref := range w.spans {
			if err := k.Add(ref); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10 * time.Second)
		for _, s := range k.List() {
			if s.Have != w.spans[s.Reference] || s.Spans != s.Have || s.Error != "" {
				t.Errorf("status %+v", s)
			}
			w.mu.Lock()
			if len(w.pinned[owner(s.Reference)]) != s.Spans {
				t.Errorf("%d chunks of %s are pinned", len(w.pinned[owner(s.Reference)]), s.Reference)
			}
			w.mu.Unlock()
		}
		synctest.Wait()
		w.mu.Lock()
		if !slices.Equal(w.asked[:3], []uint32{199, 198, 197}) && !slices.Equal(w.asked[:3], []uint32{9, 8, 7}) {
			t.Errorf("the image's order was not kept: %v", w.asked[:3])
		}

		// A chunk that is lost is fetched again, and nothing else.
		asked := len(w.asked)
		delete(w.have, id("a@sha256:1", 7))
		w.mu.Unlock()
		time.Sleep(2 * again)
		w.mu.Lock()
		if got := w.asked[asked:]; !slices.Equal(got, []uint32{7}) {
			t.Errorf("after a chunk was lost, %v was asked for", got)
		}
		w.mu.Unlock()

		// The list is there after a restart.
		again, err := New(Config{File: file, Open: w.open, Store: w, Budget: func() int64 { return 210 }})
		if err != nil {
			t.Fatal(err)
		}
		if len(again.List()) != 2 {
			t.Errorf("after a restart: %+v", again.List())
		}
	})
}

func TestFailures(t *testing.T) {
	w := newWorld()
	w.fail[50] = errors.New("registry is down")
	keep(t, w, func(t *testing.T, k *Keeper, _ string) {
		if err := errors.Join(k.Add("a@sha256:1"), k.Add("nothing@sha256:3")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		list := k.List()
		if list[0].Have != 199 || !strings.Contains(list[0].Error, "down") {
			t.Errorf("with one span that can't be had: %+v", list[0])
		}
		if !strings.Contains(list[1].Error, "no such image") {
			t.Errorf("an image that can't be opened: %+v", list[1])
		}
		w.mu.Lock()
		delete(w.fail, 50)
		w.mu.Unlock()
		time.Sleep(2 * again)
		if s := k.List()[0]; s.Have != 200 || s.Error != "" {
			t.Errorf("after the registry was back: %+v", s)
		}
	})
}

func TestStoreTooSmall(t *testing.T) {
	w := newWorld()
	w.lose = true
	keep(t, w, func(t *testing.T, k *Keeper, _ string) {
		if err := k.Add("b@sha256:2"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if s := k.List()[0]; s.Have != 0 || !strings.Contains(s.Error, "too small") {
			t.Errorf("status %+v", s)
		}
	})
}

// TestBudget has an image that does not fit beside another one, until that is gone.
func TestBudget(t *testing.T) {
	w := newWorld()
	w.spans["c@sha256:3"] = 11
	keep(t, w, func(t *testing.T, k *Keeper, _ string) {
		if err := errors.Join(k.Add("a@sha256:1"), k.Add("c@sha256:3")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if s := k.List()[1]; s.Have != 0 || !strings.Contains(s.Error, "no room: image has 11 bytes, and 10") || len(w.pinned) != 1 {
			t.Errorf("an image that does not fit: %+v, %d are pinned", s, len(w.pinned))
		}
		if _, err := k.Remove("a@sha256:1"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * again)
		if s := k.List()[0]; s.Have != 11 || s.Error != "" {
			t.Errorf("with room: %+v", s)
		}
	})
}

func TestRemove(t *testing.T) {
	w := newWorld()
	w.block = true
	keep(t, w, func(t *testing.T, k *Keeper, file string) {
		if err := k.Add("a@sha256:1"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(w.pinned) != 1 || w.opened != 1 {
			t.Fatalf("%d images are pinned, %d open", len(w.pinned), w.opened)
		}
		if found, err := k.Remove("a@sha256:1"); !found || err != nil {
			t.Fatalf("remove: %v, %v", found, err)
		}
		synctest.Wait()
		if len(w.pinned) != 0 || w.opened != 0 || len(k.List()) != 0 {
			t.Errorf("after the removal %d images are pinned, %d open, %d listed", len(w.pinned), w.opened, len(k.List()))
		}
		if found, _ := k.Remove("a@sha256:1"); found {
			t.Error("an image was removed twice")
		}
		if text, err := os.ReadFile(file); err != nil || strings.Contains(string(text), "a@") {
			t.Errorf("the file has %q, %v", text, err)
		}
	})
}

func TestDamagedList(t *testing.T) {
	file := filepath.Join(t.TempDir(), "seeds.json")
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{File: file}); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v", err)
	}
}
