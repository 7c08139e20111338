package origin

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestFlightShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f flight[string, int]
		runs := 0
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				v, err := f.do(t.Context(), "k", func(context.Context) (int, error) {
					runs++
					time.Sleep(time.Second)
					return 7, nil
				})
				if v != 7 || err != nil {
					t.Errorf("%d, %v", v, err)
				}
			})
		}
		wg.Wait()
		if runs != 1 {
			t.Errorf("%d runs", runs)
		}
	})
}

// Who leaves first does not fail the others; the last to leave stops the work.
func TestFlightLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f flight[string, int]
		var stopped atomic.Bool
		work := func(ctx context.Context) (int, error) {
			<-ctx.Done()
			stopped.Store(true)
			return 0, ctx.Err()
		}
		gone := errors.New("gone")
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Duration(i+1)*time.Second, gone)
				defer cancel()
				if _, err := f.do(ctx, "k", work); err != gone {
					t.Errorf("error %v", err)
				}
			})
		}
		time.Sleep(2500 * time.Millisecond)
		if stopped.Load() {
			t.Error("stopped while somebody waits")
		}
		wg.Wait()
		synctest.Wait()
		if took := time.Since(start); !stopped.Load() || took != 3*time.Second {
			t.Errorf("stopped: %v, after %v", stopped.Load(), took)
		}
		f.close()
		if _, err := f.do(t.Context(), "k", work); err != errClosed {
			t.Errorf("error %v after close", err)
		}
	})
}

func TestLRU(t *testing.T) {
	l := newLRU[int, string](2)
	var cut []string
	l.onCut = func(v string) { cut = append(cut, v) }
	l.put(1, "a")
	l.put(2, "b")
	l.get(1)
	l.getOrAdd(3, func() string { return "c" })
	l.put(1, "A")
	l.removeIf(3, func(v string) bool { return v == "x" })
	if diff := cmp.Diff([]string{"A", "c"}, l.values()); diff != "" {
		t.Error(diff)
	}
	l.removeIf(3, func(v string) bool { return v == "c" })
	if _, ok := l.get(3); ok {
		t.Error("removed entry is there")
	}
	if diff := cmp.Diff([]string{"b"}, cut); diff != "" {
		t.Error(diff)
	}
}

func TestTrace(t *testing.T) {
	f := newFake()
	d := f.addBlob(random(1000))
	var infos []RequestInfo
	c := newClient(t, Config{Trace: Trace{RequestDone: func(i RequestInfo) { infos = append(infos, i) }}})
	host := serve(t, f)
	if _, err := readRange(blobOf(c, host, d), 0, 700); err != nil {
		t.Fatal(err)
	}
	if _, err := c.FetchManifest(t.Context(), host+"/app", "none"); err == nil {
		t.Error("no error")
	}
	for i := range infos {
		if infos[i].Dur <= 0 {
			t.Error("request took no time")
		}
		infos[i].Dur, infos[i].Bytes = 0, min(infos[i].Bytes, 700)
	}
	want := []RequestInfo{
		{Host: host, Method: "GET", Status: 206, Bytes: 700},
		{Host: host, Method: "GET", Status: 404, Bytes: int64(len(`{"errors":[{"code":"UNKNOWN","message":"no such thing"}]}`))},
	}
	if diff := cmp.Diff(want, infos); diff != "" {
		t.Error(diff)
	}
}

// hostKeychain has credentials by host, and remembers whom it was asked for.
type hostKeychain struct {
	creds map[string]Credential
	mu    sync.Mutex
	asked []string // guarded by mu
}

func (k *hostKeychain) Credentials(_ context.Context, host, repository string) iter.Seq2[Credential, error] {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked = append(k.asked, host+" "+repository)
	return func(yield func(Credential, error) bool) { yield(k.creds[host], nil) }
}

// The credentials for a registry are not shown to its mirrors.
func TestMirrorCredentials(t *testing.T) {
	want := func(user string) *fake {
		f := newFake()
		f.addImage("a", platform("linux/amd64"))
		f.before = func(w http.ResponseWriter, r *http.Request) bool {
			got, _, _ := r.BasicAuth()
			if got != "" && got != user {
				t.Errorf("%q was shown to the host of %q", got, user)
			}
			if got == user {
				return false
			}
			w.Header().Set("WWW-Authenticate", "Basic")
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		return f
	}
	c, host := mirrored(t, want("own"), want("mirror"))
	es, err := c.endpoints(host, canPull)
	if err != nil {
		t.Fatal(err)
	}
	keys := &hostKeychain{creds: map[string]Credential{
		es[1].host.name: {Username: "own", Password: "p"},
	}}
	c.cfg.Keychain = keys
	if _, err := resolve(t.Context(), c, host+"/app:a", platform("linux/amd64")); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(keys.asked, es[0].host.name+" app") {
		t.Errorf("keychain was asked for %q", keys.asked)
	}
}
