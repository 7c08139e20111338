package origin

import (
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"graze/chunk"
)

// TestHeldRegistry has a registry fail. A client that holds back sends nothing until
// it is told that the registry is back, or until it has held back for long enough.
func TestHeldRegistry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.addImage("a", v1.Platform{OS: "linux", Architecture: "amd64"})
		var down atomic.Bool
		var asked atomic.Int64
		f.before = func(w http.ResponseWriter, _ *http.Request) bool {
			asked.Add(1)
			if down.Load() {
				w.WriteHeader(http.StatusInternalServerError)
			}
			return down.Load()
		}
		var mem memNet
		serveMem(t, &mem, "r.test", f)
		var told atomic.Int64
		c := memClient(t, &mem, Config{Retry: Retry{Attempts: 1}, Trace: Trace{RegistryDown: func(registry string) {
			if registry != "r.test" {
				t.Errorf("registry %q is down", registry)
			}
			told.Add(1)
		}}})
		ask := func() error {
			_, err := c.Head(t.Context(), "r.test/app:a")
			return err
		}
		if err := ask(); err != nil || c.Down("r.test") {
			t.Fatalf("with the registry there: %v, down %v", err, c.Down("r.test"))
		}
		down.Store(true)
		for range breakAfter {
			if err := ask(); !errors.Is(err, chunk.ErrUnavailable) {
				t.Fatal(err)
			}
		}
		if !c.Down("r.test") || told.Load() != 1 {
			t.Errorf("down %v, told %d times", c.Down("r.test"), told.Load())
		}
		c.Hold("r.test", time.Now().Add(time.Minute))
		asked.Store(0)
		for range 59 {
			if err := ask(); !errors.Is(err, chunk.ErrUnavailable) {
				t.Error(err)
			}
			time.Sleep(time.Second)
		}
		if n := asked.Load(); n != 0 {
			t.Errorf("%d requests were sent by who holds back", n)
		}

		// A probe is sent all the same.
		if err := c.Probe(t.Context(), "r.test"); !errors.Is(err, chunk.ErrUnavailable) || asked.Load() != 1 {
			t.Errorf("probe: %v, after %d requests", err, asked.Load())
		}
		down.Store(false)
		if err := c.Probe(t.Context(), "r.test"); err != nil || c.Down("r.test") {
			t.Errorf("probe of a registry that is back: %v, down %v", err, c.Down("r.test"))
		}
		if err := ask(); err != nil {
			t.Error(err)
		}

		// Who is told that it is back asks at once, and breaks off after one failure.
		down.Store(true)
		for range breakAfter {
			_ = ask()
		}
		c.Hold("r.test", time.Now().Add(time.Minute))
		c.Revive("r.test")
		asked.Store(0)
		for range 5 {
			_ = ask()
		}
		if n := asked.Load(); n != 1 {
			t.Errorf("%d requests after it was said to be back", n)
		}
		c.Hold("r.test", time.Now().Add(time.Minute))
		down.Store(false)
		time.Sleep(time.Minute)
		if err := ask(); err != nil {
			t.Error("after a minute: ", err)
		}
	})
}

// TestProbeNames has nobody be probed who is no registry.
func TestProbeNames(t *testing.T) {
	c := newClient(t, Config{})
	for _, name := range []string{"", "a", "r.test/b", "http://r.test", "r.test:x", "R.test/../"} {
		if err := c.Probe(t.Context(), name); err == nil {
			t.Errorf("%q was probed", name)
		}
	}
}
