package origin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"graze/chunk"
)

// readRange reads n bytes of a blob from off on.
func readRange(b *Blob, off, n int64) ([]byte, error) {
	r, err := b.ReadRange(context.Background(), off, n)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// partly answers with status 206, a Content-Range, and a body.
func partly(w http.ResponseWriter, contentRange string, body []byte) {
	w.Header().Set("Content-Range", contentRange)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(http.StatusPartialContent)
	w.Write(body)
}

func TestReadRangeAnswers(t *testing.T) {
	data := random(1000)
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(code) }
	}
	// All rows ask for 100 bytes from 200 on.
	tests := []struct {
		name   string
		answer http.HandlerFunc
		err    string // "" if the right bytes come
		class  error
	}{
		{"part", func(w http.ResponseWriter, r *http.Request) { partly(w, "bytes 200-299/1000", data[200:300]) }, "", nil},
		{"part of unknown total", func(w http.ResponseWriter, r *http.Request) { partly(w, "bytes 200-299/*", data[200:300]) }, "", nil},
		{"part without length", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", "bytes 200-299/1000")
			w.WriteHeader(http.StatusPartialContent)
			w.(http.Flusher).Flush()
			w.Write(data[200:300])
		}, "", nil},
		{"whole blob", func(w http.ResponseWriter, r *http.Request) { w.Write(data) }, "", nil},
		{"whole blob without length", func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			w.Write(data)
		}, "", nil},
		{"whole blob with Content-Range", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", "bytes 200-299/1000")
			w.Write(data[200:300])
		}, "status 200 with Content-Range", chunk.ErrCorrupt},
		{"whole blob of another size", func(w http.ResponseWriter, r *http.Request) { w.Write(data[:999]) }, "999 bytes, not 1000", chunk.ErrCorrupt},
		{"whole blob ends before the range", func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			w.Write(data[:150])
		}, "under 200 bytes", chunk.ErrCorrupt},
		{"several parts", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "multipart/byteranges; boundary=x")
			partly(w, "bytes 200-299/1000", data[200:300])
		}, "several came", chunk.ErrCorrupt},
		{"no Content-Range", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusPartialContent)
			w.Write(data[200:300])
		}, "no Content-Range", chunk.ErrCorrupt},
		{"other bytes", func(w http.ResponseWriter, r *http.Request) { partly(w, "bytes 0-99/1000", data[:100]) }, "bytes 0-99 came, not 200-299", chunk.ErrCorrupt},
		{"too few bytes", func(w http.ResponseWriter, r *http.Request) { partly(w, "bytes 200-298/1000", data[200:299]) }, "bytes 200-298 came", chunk.ErrCorrupt},
		{"too many bytes", func(w http.ResponseWriter, r *http.Request) { partly(w, "bytes 200-300/1000", data[200:301]) }, "bytes 200-300 came", chunk.ErrCorrupt},
		{"length is not the range's", func(w http.ResponseWriter, r *http.Request) { partly(w, "bytes 200-299/1000", data[200:299]) }, "99 bytes came, not 100", chunk.ErrCorrupt},
		{"other total", func(w http.ResponseWriter, r *http.Request) { partly(w, "bytes 200-299/1001", data[200:300]) }, "1001 bytes, not 1000", chunk.ErrCorrupt},
		{"body goes on", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", "bytes 200-299/1000")
			w.WriteHeader(http.StatusPartialContent)
			w.(http.Flusher).Flush()
			w.Write(data[200:301])
		}, "more than the 100 bytes came", chunk.ErrCorrupt},
		{"encoded", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			partly(w, "bytes 200-299/1000", data[200:300])
		}, "encoded as \"gzip\"", chunk.ErrCorrupt},
		{"ends early each time", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", "bytes 200-299/1000")
			w.Header().Set("Content-Length", "100")
			w.WriteHeader(http.StatusPartialContent)
		}, "unexpected EOF after 0 of 100 bytes", chunk.ErrUnavailable},
		{"redirect to itself", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.String(), http.StatusTemporaryRedirect)
		}, "more than 5 redirects", chunk.ErrCorrupt},
		{"redirect to a file", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "file:///etc/passwd")
			w.WriteHeader(http.StatusFound)
		}, "no HTTP URL", chunk.ErrCorrupt},
		{"redirect to a metadata service", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
		}, "link-local", chunk.ErrCorrupt},
		{"bad request", status(400), "status 400 Bad Request", nil},
		{"unauthorized", status(401), "neither bearer nor basic", chunk.ErrDenied},
		{"forbidden", status(403), "status 403", chunk.ErrDenied},
		{"not found", status(404), "status 404", chunk.ErrNotFound},
		{"range not satisfiable", status(416), "status 416", chunk.ErrCorrupt},
		{"throttled", status(429), "status 429", chunk.ErrUnavailable},
		{"server error", status(500), "status 500", chunk.ErrUnavailable},
		{"not implemented", status(501), "status 501", nil},
		{"bad gateway", status(502), "status 502", chunk.ErrUnavailable},
		{"no answer", func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }, "EOF", chunk.ErrUnavailable},
		{"empty body of status 204", status(204), "status 204", nil},
	}
	classes := []error{chunk.ErrNotFound, chunk.ErrDenied, chunk.ErrUnavailable, chunk.ErrCorrupt}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			host := serve(t, tt.answer)
			c := newClient(t, Config{})
			got, err := readRange(blobOf(c, host, descriptor(data)), 200, 100)
			checkError(t, err, tt.err)
			if err == nil {
				if !bytes.Equal(got, data[200:300]) {
					t.Error("wrong bytes")
				}
				// A blob whose size is not known is read in the same way.
				unknown := blobOf(c, host, descriptor(data))
				unknown.size = UnknownSize
				if got, err := readRange(unknown, 200, 100); err != nil || !bytes.Equal(got, data[200:300]) {
					t.Errorf("with an unknown size: %v, or wrong bytes", err)
				}
				return
			}
			for _, class := range classes {
				if errors.Is(err, class) != (class == tt.class) {
					t.Errorf("error %q: %v is %v", err, class, errors.Is(err, class))
				}
			}
			var e *chunk.Error
			if !errors.As(err, &e) || !strings.HasPrefix(e.From, host) {
				t.Errorf("error %q doesn't name %s", err, host)
			}
		})
	}
}

func TestReadRangeArguments(t *testing.T) {
	hash := chunk.Blob("sha256:" + strings.Repeat("ab", 32))
	tests := []struct {
		name, repo string
		digest     chunk.Blob
		size       int64
		off, n     int64
		err        string
	}{
		{"empty", "localhost:1/a", hash, 10, 10, 0, ""},
		{"beyond the end", "localhost:1/a", hash, 10, 5, 6, "not within its 10 bytes"},
		{"overflow", "localhost:1/a", hash, 10, 1<<63 - 1, 1<<63 - 1, "not within"},
		{"negative offset", "localhost:1/a", hash, 10, -1, 1, "not within"},
		{"negative length", "localhost:1/a", hash, 10, 1, -1, "not within"},
		{"repository", "localhost:1/A", hash, 10, 0, 1, "not valid"},
		{"repository, nothing to read", "localhost:1/A", hash, 10, 0, 0, "not valid"},
		{"digest", "localhost:1/a", "sha512:ab", 10, 0, 1, "not sha256"},
		{"size", "localhost:1/a", hash, -2, 0, 0, "size is negative"},
		{"unknown size", "localhost:1/a", hash, UnknownSize, 1 << 40, 0, ""},
		{"unknown size, overflow", "localhost:1/a", hash, UnknownSize, 1<<63 - 1, 1<<63 - 1, "not within"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := readRange(newClient(t, Config{}).Blob(tt.repo, tt.digest, tt.size), tt.off, tt.n)
			checkError(t, err, tt.err)
			if len(got) > 0 {
				t.Errorf("got %d bytes", len(got))
			}
		})
	}
}

// cutAfter answers range requests of a blob, but breaks the connection after
// limit bytes.
func cutAfter(data []byte, limit int) func(w http.ResponseWriter, r *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		var first, last int
		if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &first, &last); err != nil || last-first < limit {
			return false
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, len(data)))
		w.Header().Set("Content-Length", strconv.Itoa(last-first+1))
		w.WriteHeader(http.StatusPartialContent)
		w.Write(data[first : first+limit])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
}

func TestReadRangeResumes(t *testing.T) {
	data := random(1 << 20)
	f := newFake()
	d := f.addBlob(data)
	const limit = 100_000
	f.before = cutAfter(data, limit)
	c := newClient(t, Config{})
	host := serve(t, f)
	got, err := readRange(blobOf(c, host, d), 1000, 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, data[1000:1_001_000]) {
		t.Error("wrong bytes")
	}
	reqs := f.requests("GET")
	if len(reqs) != 10 {
		t.Fatalf("%d requests, want 10", len(reqs))
	}
	for i, line := range reqs {
		if want := fmt.Sprintf("bytes=%d-1000999", 1000+i*limit); !strings.HasSuffix(line, want) {
			t.Errorf("request %d is %q, want %s", i, line, want)
		}
	}
	if s := c.Stats().Hosts[host]; s.Retries != 9 || s.Errors != 9 || s.Bytes != 1_000_000 || s.Requests != 10 {
		t.Errorf("stats %+v", s)
	}
}

// A host that ends each answer after a few bytes must not be asked for ever.
func TestReadRangeLittleProgress(t *testing.T) {
	data := random(1 << 20)
	f := newFake()
	d := f.addBlob(data)
	f.before = cutAfter(data, 10)
	c := newClient(t, Config{})
	got, err := readRange(blobOf(c, serve(t, f), d), 0, d.Size)
	if !errors.Is(err, io.ErrUnexpectedEOF) || !errors.Is(err, chunk.ErrUnavailable) {
		t.Errorf("error %v", err)
	}
	if n := len(f.requests("GET")); n > maxResumes+1 {
		t.Errorf("%d requests", n)
	}
	if !bytes.Equal(got, data[:len(got)]) {
		t.Error("wrong bytes")
	}
}

// What a mirror can't finish, the next host does.
func TestReadRangeResumesElsewhere(t *testing.T) {
	data := random(300_000)
	own, mirror := newFake(), newFake()
	d := own.addBlob(data)
	var gone atomic.Bool
	mirror.before = func(w http.ResponseWriter, r *http.Request) bool {
		if gone.Swap(true) {
			w.WriteHeader(http.StatusNotFound)
			return true
		}
		return cutAfter(data, 100_000)(w, r)
	}
	c, host := mirrored(t, own, mirror)
	got, err := readRange(blobOf(c, host, d), 0, d.Size)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, data) {
		t.Error("wrong bytes")
	}
	if reqs := own.requests("bytes=100000-299999"); len(reqs) != 1 {
		t.Errorf("registry was asked %q", own.requests(""))
	}
}

// mirrored returns a client, and the name of a registry with mirrors.
func mirrored(t *testing.T, own http.Handler, mirrors ...http.Handler) (*Client, string) {
	t.Helper()
	var hosts strings.Builder
	fmt.Fprintf(&hosts, "server = 'http://%s'\n", serve(t, own))
	for _, m := range mirrors {
		fmt.Fprintf(&hosts, "[host.'http://%s']\n", serve(t, m))
	}
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{"r.test/hosts.toml": hosts.String()})
	return newClient(t, Config{HostsDir: dir}), "r.test"
}

func TestReadRangeCancelled(t *testing.T) {
	release := make(chan struct{})
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Range", "bytes 0-99/100")
		w.WriteHeader(http.StatusPartialContent)
		w.Write(make([]byte, 10))
		w.(http.Flusher).Flush()
		<-release
	})
	host := serve(t, h)
	t.Cleanup(func() { close(release) }) // before the server is closed
	c := newClient(t, Config{})
	ctx, cancel := context.WithCancel(context.Background())
	r, err := blobOf(c, host, descriptor(make([]byte, 100))).ReadRange(ctx, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.ReadFull(r, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := r.Read(make([]byte, 10)); err != context.Canceled {
		t.Errorf("error %v", err)
	}
	if s := c.Stats().Hosts[host]; s.Errors != 0 || s.Retries != 0 {
		t.Errorf("held against the host: %+v", s)
	}
}

func TestRangesCost(t *testing.T) {
	data := random(1000)
	whole := newFake()
	whole.before = func(w http.ResponseWriter, r *http.Request) bool {
		w.Write(data)
		return true
	}
	own := newFake()
	d := own.addBlob(data)
	c, host := mirrored(t, own, whole)
	b := blobOf(c, host, d)
	if b.RangesCost() {
		t.Error("ranges cost before anything is known")
	}
	for range 3 {
		if got, err := readRange(b, 500, 10); err != nil || !bytes.Equal(got, data[500:510]) {
			t.Fatalf("%x, %v", got, err)
		}
	}
	if m, o := len(whole.requests("")), len(own.requests("")); m != 1 || o != 2 {
		t.Errorf("%d requests to the mirror, %d to the registry; want 1 and 2", m, o)
	}
	if b.RangesCost() {
		t.Error("ranges cost though the registry knows them")
	}

	alone := blobOf(c, serve(t, whole), d)
	if _, err := readRange(alone, 500, 10); err != nil || !alone.RangesCost() {
		t.Errorf("ranges cost nothing: %v", err)
	}
}

func BenchmarkReadRange(b *testing.B) {
	for _, size := range []int64{64 << 10, 1 << 20, 8 << 20} {
		b.Run(fmt.Sprintf("size=%dKiB", size>>10), func(b *testing.B) {
			f := newFake()
			d := f.addBlob(make([]byte, 16<<20))
			s := httptest.NewServer(f)
			defer s.Close()
			c := newClient(b, Config{})
			blob := blobOf(c, strings.TrimPrefix(s.URL, "http://"), d)
			buf := make([]byte, size)
			b.SetBytes(size)
			b.ReportAllocs()
			for b.Loop() {
				r, err := blob.ReadRange(context.Background(), 4096, size)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(r, buf); err != nil {
					b.Fatal(err)
				}
				r.Close()
			}
		})
	}
}
