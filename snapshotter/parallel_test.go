package snapshotter

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
)

// TestSlowRegistry asks for the layers of 50 images, five of them at a time for
// each, from a registry that answers after ten seconds. Nothing else waits for it.
// The time is not real.
func TestSlowRegistry(t *testing.T) {
	needRoot(t)
	images := newFakeImages()
	s := open(t, Config{Root: t.TempDir()}, images)
	pull(t, s, images.add("r.test/known", "k"))
	synctest.Test(t, func(t *testing.T) {
		images.before = func(ctx context.Context, _, _ string) error {
			select {
			case <-time.After(10 * time.Second):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		start := time.Now()
		const askers, same = 50, 5
		answers := make(chan error, askers)
		imgs := make([]Image, askers/same)
		for i := range imgs {
			imgs[i] = images.add(fmt.Sprintf("r.test/app-%d", i), "a"+fmt.Sprint(i))
		}
		for i := range askers {
			img := imgs[i/same]
			go func() {
				_, err := s.Prepare(t.Context(), fmt.Sprint("extract ", i), "", snapshots.WithLabels(criLabels(img, img.Chains[0])))
				answers <- err
			}()
		}
		synctest.Wait() // all of them are waiting
		useMeanwhile(t, s)
		if d := time.Since(start); d != 0 {
			t.Errorf("other work took %v", d)
		}
		for range askers {
			if err := <-answers; !errdefs.IsAlreadyExists(err) {
				t.Error("the layer is not served lazily: ", err)
			}
		}
		// One of the askers for an image resolves it and makes it ready.
		if d := time.Since(start); d != 20*time.Second {
			t.Errorf("the layers took %v", d)
		}
	})
}

// useMeanwhile does what takes no network.
func useMeanwhile(t *testing.T, s *Snapshotter) {
	t.Helper()
	ctx := t.Context()
	if _, err := s.Prepare(ctx, "container", ""); err != nil {
		t.Error(err)
	}
	if _, err := s.View(ctx, "look", ""); err != nil {
		t.Error(err)
	}
	n := 0
	if err := s.Walk(ctx, func(context.Context, snapshots.Info) error { n++; return nil }); err != nil || n != 3 {
		t.Errorf("%d snapshots are listed: %v", n, err)
	}
	if err := s.Commit(ctx, "committed", "container"); err != nil {
		t.Error(err)
	}
	if err := s.Remove(ctx, "committed"); err != nil {
		t.Error(err)
	}
	if err := s.Cleanup(ctx); err != nil {
		t.Error(err)
	}
}

// TestClientGone has one of two askers leave: the other gets the answer.
func TestClientGone(t *testing.T) {
	needRoot(t)
	images := newFakeImages()
	s := open(t, Config{Root: t.TempDir()}, images)
	img := images.add("r.test/app", "a")
	synctest.Test(t, func(t *testing.T) {
		images.before = func(ctx context.Context, _, _ string) error {
			select {
			case <-time.After(time.Second):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		ask := func(ctx context.Context, key string) chan error {
			answer := make(chan error, 1)
			go func() {
				_, err := s.Prepare(ctx, key, "", snapshots.WithLabels(criLabels(img, img.Chains[0])))
				answer <- err
			}()
			synctest.Wait()
			return answer
		}
		ctx, cancel := context.WithCancel(t.Context())
		first, second := ask(ctx, "one"), ask(t.Context(), "two")
		cancel()
		if err := <-first; !errdefs.IsCanceled(err) {
			t.Errorf("who left got %v", err)
		}
		if err := <-second; !errdefs.IsAlreadyExists(err) {
			t.Errorf("who stayed got %v", err)
		}
	})
	if n := s.Stats().Layers[Lazy]; n != 1 {
		t.Errorf("%d layers were answered", n)
	}
}
