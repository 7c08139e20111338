package origin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"graze/chunk"
)

// memClient returns a client of a network in memory, for use in a bubble.
func memClient(t *testing.T, n *memNet, cfg Config) *Client {
	cfg.PlainHTTP, cfg.Dial = true, n.dial
	return newClient(t, cfg)
}

// A transfer that stalls is taken up again from where it was.
func TestStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mem memNet
		data := random(1000)
		f := newFake()
		d := f.addBlob(data)
		first := true
		f.before = func(w http.ResponseWriter, r *http.Request) bool {
			if !first {
				return false
			}
			first = false
			w.Header().Set("Content-Range", "bytes 0-999/1000")
			w.WriteHeader(http.StatusPartialContent)
			w.Write(data[:300])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return true
		}
		serveMem(t, &mem, "r.test", f)
		c := memClient(t, &mem, Config{Timeouts: Timeouts{Stall: 5 * time.Second}})
		start := time.Now()
		got, err := readRange(blobOf(c, "r.test", d), 0, 1000)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("error %v", err)
		}
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("took %v", took)
		}
		if reqs := f.requests("bytes=300-999"); len(reqs) != 1 {
			t.Errorf("requests %q", f.requests(""))
		}
	})
}

func TestNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mem memNet
		serveMem(t, &mem, "r.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
		c := memClient(t, &mem, Config{Retry: Retry{Attempts: 1}, Timeouts: Timeouts{Connect: time.Second, Header: 2 * time.Second}})
		start := time.Now()
		_, err := resolve(t.Context(), c, "r.test/a", platform(""))
		checkError(t, err, errNoAnswer.Error())
		if !errors.Is(err, chunk.ErrUnavailable) {
			t.Errorf("error %v", err)
		}
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

func TestRetryAfterCloses(t *testing.T) {
	tests := []struct {
		name   string
		status int
		header string
		closed time.Duration // how long no request is made
	}{
		{"429, seconds", 429, "120", 2 * time.Minute},
		{"503, seconds", 503, "120", 2 * time.Minute},
		{"429, date", 429, "Sat, 01 Jan 2000 00:02:00 GMT", 2 * time.Minute}, // a bubble begins with 2000
		{"429, longer than allowed", 429, "86400", 5 * time.Minute},
		{"429 without", 429, "", 0},
		{"500 has none", 500, "120", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mem memNet
				f := newFake()
				d := f.addBlob(random(100))
				refuse := true
				f.before = func(w http.ResponseWriter, r *http.Request) bool {
					if refuse {
						refuse = false
						if tt.header != "" {
							w.Header().Set("Retry-After", tt.header)
						}
						w.WriteHeader(tt.status)
						return true
					}
					return false
				}
				serveMem(t, &mem, "r.test", f)
				var down time.Time
				c := memClient(t, &mem, Config{
					Retry: Retry{Attempts: 1},
					Trace: Trace{HostDown: func(_ string, until time.Time, _ error) { down = until }},
				})
				b := blobOf(c, "r.test", d)
				start := time.Now()
				if _, err := readRange(b, 0, 10); !errors.Is(err, chunk.ErrUnavailable) {
					t.Fatalf("error %v", err)
				}
				if tt.closed == 0 {
					if _, err := readRange(b, 0, 10); err != nil {
						t.Error(err)
					}
					return
				}
				if got := down.Sub(start); got != tt.closed {
					t.Errorf("reported as down for %v", got)
				}
				time.Sleep(tt.closed - time.Second)
				_, err := readRange(b, 0, 10)
				checkError(t, err, "as it wants: status "+strconv.Itoa(tt.status))
				if !errors.Is(err, chunk.ErrUnavailable) {
					t.Errorf("error %v", err)
				}
				if n := len(f.requests("")); n != 1 {
					t.Errorf("%d requests while closed", n)
				}
				time.Sleep(time.Second)
				if _, err := readRange(b, 0, 10); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A short Retry-After is waited for.
func TestRetryAfterWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mem memNet
		f := newFake()
		d := f.addBlob(random(100))
		var refused atomic.Bool
		f.before = func(w http.ResponseWriter, r *http.Request) bool {
			if refused.Swap(true) {
				return false
			}
			w.Header().Set("Retry-After", "3")
			w.WriteHeader(http.StatusTooManyRequests)
			return true
		}
		serveMem(t, &mem, "r.test", f)
		c := memClient(t, &mem, Config{Retry: Retry{MaxBackoff: 5 * time.Second, MinBackoff: time.Millisecond}})
		start := time.Now()
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if _, err := readRange(blobOf(c, "r.test", d), 0, 10); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(start); took < 3*time.Second || took > 4*time.Second {
			t.Errorf("took %v", took)
		}
		if s := c.Stats().Hosts["r.test"]; s.Throttled != 1 {
			t.Errorf("stats %+v", s)
		}
	})
}

// A registry that is away is probed, however many want something of it.
func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mem memNet
		f := newFake()
		d := f.addBlob(random(100))
		away := true
		f.before = func(w http.ResponseWriter, r *http.Request) bool {
			if away {
				w.WriteHeader(http.StatusBadGateway)
			}
			return away
		}
		serveMem(t, &mem, "r.test", f)
		var ups int
		c := memClient(t, &mem, Config{Trace: Trace{HostUp: func(string) { ups++ }}})
		b := blobOf(c, "r.test", d)
		end := time.Now().Add(5 * time.Minute)
		for time.Now().Before(end) {
			start := time.Now()
			if _, err := readRange(b, 0, 10); !errors.Is(err, chunk.ErrUnavailable) {
				t.Fatalf("error %v", err)
			}
			if took := time.Since(start); took > time.Second {
				t.Fatalf("failed after %v, not at once", took)
			}
			time.Sleep(10 * time.Millisecond)
		}
		// 3 failures, probes after 1, 2, 4, 8, 16 and then every 30 seconds or less.
		if n := len(f.requests("")); n < 3+5+8 || n > 3+5+20 {
			t.Errorf("%d requests in five minutes of failure", n)
		}
		away = false
		time.Sleep(maxProbe)
		for range 10 {
			if _, err := readRange(b, 0, 10); err != nil {
				t.Fatal(err)
			}
		}
		if ups != 1 {
			t.Errorf("reported as up %d times", ups)
		}
	})
}

// A mirror that fails once costs nothing for a while; its registry is asked.
func TestMirrorIsSkipped(t *testing.T) {
	never := func(ctx context.Context) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	tests := []struct {
		name   string
		mirror func(w http.ResponseWriter, r *http.Request) // nil: it can't be reached
		first  time.Duration                                // that the first read takes
	}{
		{"no connection", nil, 7 * time.Second},
		{"no answer", func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, 10*time.Second + 30*time.Second},
		{"server error", answerWith(500), 0},
		{"wrong answer", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusPartialContent) }, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mem memNet
				own := newFake()
				d := own.addBlob(random(100))
				serveMem(t, &mem, "own.test", own)
				var asked atomic.Int32
				if tt.mirror != nil {
					serveMem(t, &mem, "mirror.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						asked.Add(1)
						tt.mirror(w, r)
					}))
				}
				dir := t.TempDir()
				writeFiles(t, dir, map[string]string{"r.test/hosts.toml": "server = 'http://own.test'\n[host.'http://mirror.test']\ndial_timeout = '7s'"})
				c := newClient(t, Config{HostsDir: dir, Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
					if tt.mirror == nil && addr == "mirror.test:80" {
						asked.Add(1)
						return never(ctx)
					}
					return mem.dial(ctx, network, addr)
				}})
				start := time.Now()
				for range 20 {
					if _, err := readRange(blobOf(c, "r.test", d), 0, 10); err != nil {
						t.Fatal(err)
					}
				}
				if took := time.Since(start); took != tt.first {
					t.Errorf("20 reads took %v, want %v", took, tt.first)
				}
				if asked.Load() != 1 {
					t.Errorf("mirror was asked %d times", asked.Load())
				}
				time.Sleep(time.Second)
				if _, err := readRange(blobOf(c, "r.test", d), 0, 10); err != nil {
					t.Fatal(err)
				}
				if asked.Load() != 2 {
					t.Errorf("mirror was asked %d times, with one probe", asked.Load())
				}
			})
		})
	}
}

// Requests to a host wait for their turn.
func TestHostRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mem memNet
		f := newFake()
		d := f.addBlob(random(100))
		f.before = func(http.ResponseWriter, *http.Request) bool {
			time.Sleep(time.Second)
			return false
		}
		serveMem(t, &mem, "r.test", f)
		c := memClient(t, &mem, Config{HostRequests: 3})
		start := time.Now()
		var wg sync.WaitGroup
		for range 9 {
			wg.Go(func() {
				if _, err := readRange(blobOf(c, "r.test", d), 0, 10); err != nil {
					t.Error(err)
				}
			})
		}
		// Who doesn't want to wait can leave.
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		synctest.Wait()
		if _, err := blobOf(c, "r.test", d).ReadRange(ctx, 0, 10); err != context.DeadlineExceeded {
			t.Errorf("error %v", err)
		}
		wg.Wait()
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// A store has blobs behind URLs that hold for a while only.
type store struct {
	*fake
	host   string
	life   time.Duration
	status int // of answers to expired URLs
	delay  time.Duration
	leaked bool // something was sent here that is not for the store
}

// redirect sends requests for blobs to the store.
func (s *store) redirect(w http.ResponseWriter, r *http.Request) bool {
	if !strings.Contains(r.URL.Path, "/blobs/") {
		return false
	}
	time.Sleep(s.delay)
	q := url.Values{"Expires": {strconv.FormatInt(time.Now().Add(s.life).Unix(), 10)}, "sig": {"x"}}
	http.Redirect(w, r, fmt.Sprintf("http://%s%s?%s", s.host, r.URL.Path, q.Encode()), http.StatusTemporaryRedirect)
	return true
}

// check refuses expired URLs.
func (s *store) check(w http.ResponseWriter, r *http.Request) bool {
	s.leaked = s.leaked || r.Header.Get("Authorization") != ""
	end, _ := strconv.ParseInt(r.URL.Query().Get("Expires"), 10, 64)
	if time.Now().Before(time.Unix(end, 0)) {
		return false
	}
	w.WriteHeader(s.status)
	return true
}

// newStore starts a registry r.test, which wants tokens, and its store.
func newStore(t *testing.T, n *memNet, life time.Duration) (own *fake, s *store) {
	own, s = newFake(), &store{fake: newFake(), host: "store.test", life: life, status: http.StatusForbidden}
	own.before, s.fake.before = s.redirect, s.check
	tokens := newTokenServer()
	tokens.realm, tokens.life = "http://auth.test/token", 24*time.Hour
	serveMem(t, n, "r.test", tokens.protect(own))
	serveMem(t, n, "auth.test", tokens)
	serveMem(t, n, "store.test", s)
	return own, s
}

func TestTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mem memNet
		own, s := newStore(t, &mem, 4*time.Minute)
		data := random(1000)
		d := s.addBlob(data)
		c := memClient(t, &mem, Config{})
		b := blobOf(c, "r.test", d)
		read := func() {
			t.Helper()
			if got, err := readRange(b, 100, 50); err != nil || !bytes.Equal(got, data[100:150]) {
				t.Fatalf("error %v", err)
			}
		}
		for range 5 {
			read()
		}
		if n := len(own.requests("/blobs/")); n != 1 {
			t.Errorf("registry was asked %d times for one target", n)
		}
		// Shortly before its end, the URL is renewed, without anything failing.
		time.Sleep(3*time.Minute + 31*time.Second)
		read()
		if n, again := len(own.requests("/blobs/")), c.Stats().Hosts["r.test"].Reresolved; n != 2 || again != 0 {
			t.Errorf("registry was asked %d times, %d of them after a refusal", n, again)
		}
		if s.leaked {
			t.Error("the store was sent the registry's token")
		}
	})
}

// A URL that is refused before its time is replaced, once for all.
func TestTargetRefused(t *testing.T) {
	for _, status := range []int{400, 401, 403, 404} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mem memNet
				own, s := newStore(t, &mem, time.Hour)
				s.status = status
				data := random(1000)
				d := s.addBlob(data)
				c := memClient(t, &mem, Config{})
				b := blobOf(c, "r.test", d)
				if _, err := readRange(b, 0, 10); err != nil {
					t.Fatal(err)
				}
				revoked := time.Now()
				s.fake.before = func(w http.ResponseWriter, r *http.Request) bool {
					end, _ := strconv.ParseInt(r.URL.Query().Get("Expires"), 10, 64)
					if time.Unix(end, 0).After(revoked.Add(time.Hour)) {
						return false
					}
					w.WriteHeader(status)
					return true
				}
				s.delay = 2 * time.Second // so that all ask at the same time
				var wg sync.WaitGroup
				for i := range int64(20) {
					wg.Go(func() {
						if got, err := readRange(b, i, 10); err != nil || !bytes.Equal(got, data[i:i+10]) {
							t.Errorf("error %v", err)
						}
					})
				}
				time.Sleep(time.Second)
				wg.Wait()
				if n := len(own.requests("/blobs/")); n != 2 {
					t.Errorf("registry was asked %d times, want 2", n)
				}
			})
		})
	}
}

func TestTargetRefusedForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mem memNet
		own, s := newStore(t, &mem, time.Hour)
		d := s.addBlob(random(1000))
		c := memClient(t, &mem, Config{})
		b := blobOf(c, "r.test", d)
		if _, err := readRange(b, 0, 10); err != nil {
			t.Fatal(err)
		}
		s.fake.before = func(w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(http.StatusForbidden)
			return true
		}
		_, err := readRange(b, 0, 10)
		if !errors.Is(err, chunk.ErrDenied) {
			t.Errorf("error %v", err)
		}
		checkError(t, err, "from r.test (by store.test): status 403")
		if n := len(own.requests("/blobs/")); n != 2 {
			t.Errorf("registry was asked %d times, want 2", n)
		}
	})
}

// A registry can come to serve its blobs itself.
func TestTargetsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mem memNet
		own, s := newStore(t, &mem, time.Minute)
		data := random(1000)
		d := s.addBlob(data)
		own.addBlob(data)
		c := memClient(t, &mem, Config{})
		b := blobOf(c, "r.test", d)
		for range 3 {
			if got, err := readRange(b, 100, 50); err != nil || !bytes.Equal(got, data[100:150]) {
				t.Fatalf("error %v", err)
			}
			time.Sleep(time.Minute)
			own.mu.Lock()
			own.before = nil
			own.mu.Unlock()
		}
		// One that redirects, one byte to see that there are no more, two ranges.
		if n := len(own.requests("/blobs/")); n != 4 {
			t.Errorf("registry was asked %q", own.requests("/blobs/"))
		}
		if n := len(s.requests("")); n != 1 {
			t.Errorf("store was asked %d times", n)
		}
	})
}

// An expired URL in the middle of a read is not the reader's trouble.
func TestTargetExpiresWhileReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mem memNet
		_, s := newStore(t, &mem, time.Minute)
		data := random(300_000)
		d := s.addBlob(data)
		first := true
		s.fake.before = func(w http.ResponseWriter, r *http.Request) bool {
			if first {
				first = false
				return cutAfter(data, 100_000)(w, r)
			}
			return s.check(w, r)
		}
		c := memClient(t, &mem, Config{})
		r, err := blobOf(c, "r.test", d).ReadRange(t.Context(), 0, d.Size)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		got := make([]byte, 50_000)
		if _, err := io.ReadFull(r, got); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		rest, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(append(got, rest...), data) {
			t.Errorf("%d bytes, error %v", len(rest), err)
		}
	})
}

// Changed files take effect; wrong ones don't.
func TestConfigReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mem memNet
		one, two := newFake(), newFake()
		one.addImage("a", platform("linux/amd64"))
		two.addImage("a", platform("linux/amd64"))
		serveMem(t, &mem, "one.test", one)
		serveMem(t, &mem, "two.test", two)
		dir := t.TempDir()
		var rejected error
		c := memClient(t, &mem, Config{HostsDir: dir, Trace: Trace{ConfigRejected: func(_ string, err error) { rejected = err }}})
		step := func(content string, wantOne, wantTwo int) {
			t.Helper()
			writeFiles(t, dir, map[string]string{"r.test/hosts.toml": content})
			time.Sleep(recheckHosts)
			if _, err := c.FetchManifest(t.Context(), "r.test/app", "a"); err != nil {
				t.Fatal(err)
			}
			if a, b := len(one.requests("")), len(two.requests("")); a != wantOne || b != wantTwo {
				t.Errorf("%d and %d requests, want %d and %d", a, b, wantOne, wantTwo)
			}
		}
		step("server = 'http://one.test'", 1, 0)
		step("server = 'http://two.test'", 1, 1)
		step("server = [", 1, 2)
		checkError(t, rejected, "hosts.toml")
		step("server = 'http://one.test'", 2, 2)
	})
}
