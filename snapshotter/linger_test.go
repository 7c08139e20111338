package snapshotter

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestLinger runs containers of an image one after the other: they share a mount,
// which goes when there has been none for a while, or when the image goes. The time
// is not real.
func TestLinger(t *testing.T) {
	needRoot(t)
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		images := newFakeImages()
		s := open(t, Config{Root: root, Linger: time.Minute}, images)
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- s.Run(ctx) }()
		defer func() {
			stop()
			if err := <-ran; err != nil {
				t.Error(err)
			}
		}()
		run := func(img Image) {
			t.Helper()
			if _, err := s.Prepare(t.Context(), "run", top(img)); err != nil {
				t.Fatal(err)
			}
			if err := s.Remove(t.Context(), "run"); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		mounted := func(when string, want int) {
			t.Helper()
			if n := len(images.views()); n != want {
				t.Errorf("%s: %d views are mounted, not %d", when, n, want)
			}
		}
		app, other := images.add("r.test/app", "a", "b"), images.add("r.test/other", "c")
		pull(t, s, app)
		pull(t, s, other)
		for range 3 {
			run(app)
			time.Sleep(59 * time.Second)
		}
		synctest.Wait()
		mounted("after three containers", 1)
		if images.mounts != 1 {
			t.Errorf("the image was mounted %d times", images.mounts)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		mounted("after a minute", 0)

		run(app)
		run(other)
		mounted("after another", 2)
		if err := s.Remove(t.Context(), top(other)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		mounted("without its image", 1)
	})
}
