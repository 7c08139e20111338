package registry

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

func textLog(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

func TestTraceAndStats(t *testing.T) {
	const content = "0123456789"
	var events []Event
	r := open(t, t.TempDir(), Config{Trace: func(e Event) { events = append(events, e) }})
	blob := pushBlob(t, r, "a", content)
	manifest, size := pushImage(t, r, "a", "latest", content, "")
	before := r.Stats()
	events = nil

	do(r, "GET", "/v2/a/blobs/"+blob, "")
	do(r, "HEAD", "/v2/a/blobs/"+blob, "")
	do(r, "GET", "/v2/a/blobs/"+blob, "", "Range", "bytes=7-")
	do(r, "GET", "/v2/a/manifests/latest", "")
	lost := do(r, "GET", "/v2/a/blobs/"+sum("none"), "")
	do(r, "HEAD", "/v2/a/blobs/"+sum("none"), "")
	other := do(r, "GET", "/robots.txt", "")
	want := []Event{
		{"GET", KindBlob, "a", blob, 200, 10, ""},
		{"HEAD", KindBlob, "a", blob, 200, 0, ""},
		{"GET", KindBlob, "a", blob, 206, 3, "bytes=7-"},
		{"GET", KindManifest, "a", manifest, 200, int64(size), ""},
		{"GET", KindBlob, "a", sum("none"), 404, int64(lost.Body.Len()), ""},
		{"HEAD", KindBlob, "a", sum("none"), 404, 0, ""},
		{"GET", KindOther, "", "", 404, int64(other.Body.Len()), ""},
	}
	if !slices.Equal(events, want) {
		t.Errorf("events are\n%+v, not\n%+v", events, want)
	}
	after := r.Stats()
	for kind, want := range map[Kind]Count{
		KindBlob:     {5, 13 + int64(lost.Body.Len())},
		KindManifest: {1, int64(size)},
		KindOther:    {1, int64(other.Body.Len())},
		KindUpload:   {},
		KindTags:     {},
	} {
		got := Count{after[kind].Requests - before[kind].Requests, after[kind].Bytes - before[kind].Bytes}
		if got != want {
			t.Errorf("%s: %+v, not %+v", kind, got, want)
		}
	}
}

// TestCutAnswer checks that an answer that the client or a handler around the
// registry cuts short counts with the bytes that went out.
func TestCutAnswer(t *testing.T) {
	const kib = 1 << 10
	tests := []struct {
		name  string
		abort bool
		want  int64
	}{
		{"error", false, 100 * kib},
		{"panic", true, 96 * kib}, // of whole writes: what a panicking one did is not known
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var events []Event
			r := open(t, t.TempDir(), Config{Trace: func(e Event) { events = append(events, e) }})
			d := pushBlob(t, r, "a", strings.Repeat("x", kib*kib))
			events = nil
			func() {
				defer func() {
					if got := recover(); tt.abort != (got == http.ErrAbortHandler) {
						t.Errorf("recovered %v", got)
					}
				}()
				w := &cutWriter{header: make(http.Header), left: 100 * kib, abort: tt.abort}
				r.ServeHTTP(w, httptest.NewRequest("GET", "/v2/a/blobs/"+d, nil))
			}()
			if len(events) != 1 || events[0].Bytes != tt.want || events[0].Status != http.StatusOK {
				t.Errorf("events are %+v", events)
			}
			if got := r.Stats()[KindBlob]; got != (Count{1, tt.want}) {
				t.Errorf("stats are %+v", got)
			}
			if err := r.Idle(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A cutWriter takes some bytes and fails then, or panics as a handler that
// aborts does.
type cutWriter struct {
	header http.Header
	left   int
	abort  bool
}

func (w *cutWriter) Header() http.Header { return w.header }
func (w *cutWriter) WriteHeader(int)     {}
func (w *cutWriter) Write(p []byte) (int, error) {
	if len(p) <= w.left {
		w.left -= len(p)
		return len(p), nil
	}
	if w.abort {
		panic(http.ErrAbortHandler)
	}
	n := w.left
	w.left = 0
	return n, io.ErrClosedPipe
}

// TestSendfile checks that the server's writer gets to see the blob's file.
func TestSendfile(t *testing.T) {
	r := open(t, t.TempDir(), Config{})
	d := pushBlob(t, r, "a", "0123456789")
	for _, header := range []string{"", "bytes=2-5"} {
		w := &fileWriter{ResponseRecorder: httptest.NewRecorder()}
		req := httptest.NewRequest("GET", "/v2/a/blobs/"+d, nil)
		req.Header.Set("Range", header)
		r.ServeHTTP(w, req)
		if !w.file {
			t.Errorf("range %q: the writer was not given the file", header)
		}
	}
}

// A fileWriter notes whether a limited file is read from, which is what the
// server's writer hands to sendfile.
type fileWriter struct {
	*httptest.ResponseRecorder
	file bool
}

func (w *fileWriter) ReadFrom(src io.Reader) (int64, error) {
	if limited, ok := src.(*io.LimitedReader); ok {
		_, w.file = limited.R.(*os.File)
	}
	return io.Copy(w.ResponseRecorder, src)
}

func TestIdle(t *testing.T) {
	r := open(t, t.TempDir(), Config{})
	loc := startUpload(t, r, "a")
	synctest.Test(t, func(t *testing.T) {
		body, feed := io.Pipe()
		go r.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("PATCH", loc, body))
		synctest.Wait()

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.Idle(ctx); err != context.Canceled {
			t.Errorf("error is %v while a request is under way", err)
		}
		idle := make(chan error)
		go func() { idle <- r.Idle(t.Context()) }()
		synctest.Wait()
		select {
		case err := <-idle:
			t.Errorf("idle too early: %v", err)
		default:
		}
		feed.Close()
		if err := <-idle; err != nil {
			t.Error(err)
		}
	})
	if err := r.Idle(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestLog checks what a push leaves in the log.
func TestLog(t *testing.T) {
	var log bytes.Buffer
	r := open(t, t.TempDir(), Config{Log: textLog(&log)})
	d, _ := pushImage(t, r, "a", "latest", "x", "")
	for _, want := range []string{"manifest pushed", "repo=a", "tag=latest", "digest=" + d} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("log is %q, without %q", &log, want)
		}
	}
}
