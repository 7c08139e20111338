package node

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"graze/chunk"
	"graze/image/imagetest"
)

// sealedTest opens an image with sealed chunks on a node that runs until the test
// ends, and returns what its files are to hold, by their inode numbers.
func sealedTest(t *testing.T) (*sealedFiles, map[uint64][]byte) {
	t.Helper()
	st := newStateTest(t)
	n := st.open(t)
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- n.Run(ctx) }()
	tree := st.use(t, n, pushSOCI(t, st, false))
	t.Cleanup(func() {
		st.close(t, tree)
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	})
	zr, err := gzip.NewReader(bytes.NewReader(smallImage(t, imagetest.Gzip(6)).Layers[0].Data))
	if err != nil {
		t.Fatal(err)
	}
	_, byName, err := imagetest.ReadArchive(zr)
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[uint64][]byte)
	for name, data := range byName {
		ino := uint64(1)
		for part := range strings.SplitSeq(name, "/") {
			var ok bool
			if ino, ok = tree.View.Lookup(ino, part); !ok {
				t.Fatalf("no %s", name)
			}
		}
		files[ino] = data
	}
	f, ok := tree.Files.(*sealedFiles)
	if !ok {
		t.Fatalf("files are read by %T", tree.Files)
	}
	return f, files
}

// checkSealed reads all of each file, and of each its middle.
func checkSealed(t *testing.T, f *sealedFiles, files map[uint64][]byte) {
	t.Helper()
	for ino, want := range files {
		for _, r := range [][2]int{{0, len(want)}, {len(want) / 3, len(want) / 3}} {
			p := bytes.Repeat([]byte{0xaa}, r[1])
			n, err := f.ReadAt(t.Context(), ino, p, int64(r[0]))
			if err != nil || n != len(p) || !bytes.Equal(p, want[r[0]:r[0]+r[1]]) {
				t.Errorf("inode %d: %d of %d bytes at %d, %v", ino, n, len(p), r[0], err)
			}
		}
	}
}

// TestSealedFiles has many readers read all of an image at the same time. Each span is
// opened once, and never again.
func TestSealedFiles(t *testing.T) {
	f, files := sealedTest(t)
	var mu sync.Mutex // guards kept
	kept := make(map[chunk.ID]int)
	keep := f.keep
	f.keep = func(v chunk.Verified) error {
		mu.Lock()
		kept[v.Ref().ID]++
		mu.Unlock()
		return keep(v)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { checkSealed(t, f, files) })
	}
	wg.Wait()
	checkSealed(t, f, files)
	if len(kept) < 2 || len(kept) != len(f.opened) || len(f.opening) != 0 {
		t.Errorf("%d spans opened, %d known, %d under way", len(kept), len(f.opened), len(f.opening))
	}
	for id, n := range kept {
		if n != 1 {
			t.Errorf("%s was opened %d times", id, n)
		}
	}
}

// TestSealedNotKept reads where the store takes nothing, and where it loses what it
// took.
func TestSealedNotKept(t *testing.T) {
	f, files := sealedTest(t)
	keep := f.keep
	f.keep = func(chunk.Verified) error { return chunk.ErrFull }
	checkSealed(t, f, files)
	if len(f.opened) != 0 {
		t.Errorf("%d spans are taken for kept", len(f.opened))
	}
	f.keep = keep
	checkSealed(t, f, files)
	f.read = func(chunk.ID, []byte, int64) error { return chunk.ErrNotFound }
	checkSealed(t, f, files)
}

// TestSealedInterrupted interrupts the read that opens a span while another one waits
// for it: that one opens it itself.
func TestSealedInterrupted(t *testing.T) {
	f, files := sealedTest(t)
	var ino uint64
	for _, ino = range slices.Sorted(maps.Keys(files)) {
		if len(files[ino]) > 0 {
			break
		}
	}
	// No room: whoever opens a span waits.
	for range maxOpening {
		f.room <- struct{}{}
	}
	gone := errors.New("gone")
	ctx, interrupt := context.WithCancelCause(t.Context())
	failed, read := make(chan error, 1), make(chan error, 1)
	want := files[ino]
	p := make([]byte, len(want))
	go func() {
		_, err := f.ReadAt(ctx, ino, make([]byte, len(want)), 0)
		failed <- err
	}()
	for opening := 0; opening == 0; runtime.Gosched() { // until the first has begun
		f.mu.Lock()
		opening = len(f.opening)
		f.mu.Unlock()
	}
	go func() {
		_, err := f.ReadAt(t.Context(), ino, p, 0)
		read <- err
	}()
	interrupt(gone)
	if err := <-failed; !errors.Is(err, gone) {
		t.Errorf("the interrupted read: %v", err)
	}
	for range maxOpening {
		<-f.room
	}
	if err := <-read; err != nil || !bytes.Equal(p, want) {
		t.Errorf("the other read: %v", err)
	}
}
