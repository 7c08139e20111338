package chaos

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/bits"
	"math/rand/v2"
	"mime"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// blob is what the registry behind the faults has.
var blob = func() []byte {
	p := make([]byte, 300<<10)
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(p)
	return p
}()

const blobPath = "/v2/app/blobs/sha256:00"

// serveBlob answers any request with the blob.
func serveBlob(w http.ResponseWriter, r *http.Request) {
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(blob))
}

// An answer is what a client got.
type answer struct {
	status int
	header http.Header
	length int64 // as announced; -1 if it was not
	body   []byte
	err    error // of reading the body
}

// get asks for a range of the blob, or for all of it.
func get(t *testing.T, client *http.Client, url, bytesRange string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if bytesRange != "" {
		req.Header.Set("Range", "bytes="+bytesRange)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode, header: resp.Header, length: resp.ContentLength}
	a.body, a.err = io.ReadAll(resp.Body)
	return a
}

func TestFaults(t *testing.T) {
	const from, to = 1000, 200_999
	want := blob[from : to+1]
	for _, row := range []struct {
		name  string
		fault Fault
		check func(t *testing.T, a answer)
	}{
		{"none", Fault{}, func(t *testing.T, a answer) {
			if a.err != nil || !bytes.Equal(a.body, want) {
				t.Errorf("%d bytes, %v", len(a.body), a.err)
			}
		}},
		{"of manifests only", Fault{Kind: Status, Status: 500, Of: Manifests}, func(t *testing.T, a answer) {
			if a.status != 206 {
				t.Errorf("status %d", a.status)
			}
		}},
		{"status", Fault{Kind: Status, Status: 429, RetryAfter: 1500 * time.Millisecond}, func(t *testing.T, a answer) {
			if a.status != 429 || a.header.Get("Retry-After") != "2" {
				t.Errorf("status %d, Retry-After %q", a.status, a.header.Get("Retry-After"))
			}
		}},
		{"whole body", Fault{Kind: WholeBody}, func(t *testing.T, a answer) {
			if a.status != 200 || !bytes.Equal(a.body, blob) {
				t.Errorf("status %d, %d bytes", a.status, len(a.body))
			}
		}},
		{"multipart", Fault{Kind: Multipart}, func(t *testing.T, a answer) {
			_, params, err := mime.ParseMediaType(a.header.Get("Content-Type"))
			if err != nil || a.status != 206 {
				t.Fatalf("status %d, %v", a.status, err)
			}
			part, err := multipart.NewReader(bytes.NewReader(a.body), params["boundary"]).NextPart()
			if err != nil {
				t.Fatal(err)
			}
			if p, err := io.ReadAll(part); err != nil || !bytes.Equal(p, want) {
				t.Errorf("%d bytes, %v", len(p), err)
			}
		}},
		{"cut", Fault{Kind: Cut, After: 70_000}, func(t *testing.T, a answer) {
			if a.err == nil || len(a.body) != 70_000 || a.length != int64(len(want)) {
				t.Errorf("%d of %d bytes, %v", len(a.body), a.length, a.err)
			}
		}},
		{"excess", Fault{Kind: Excess, After: 100}, func(t *testing.T, a answer) {
			if a.err != nil || len(a.body) != len(want)+100 || !bytes.HasPrefix(a.body, want) {
				t.Errorf("%d bytes, %v", len(a.body), a.err)
			}
		}},
		{"no length", Fault{Kind: NoLength}, func(t *testing.T, a answer) {
			if a.err != nil || a.length != -1 || !bytes.Equal(a.body, want) {
				t.Errorf("length %d, %d bytes, %v", a.length, len(a.body), a.err)
			}
		}},
		{"flip", Fault{Kind: Flip, After: 10_000}, func(t *testing.T, a answer) {
			wrong := 0
			for i := range want {
				wrong += bits.OnesCount8(want[i] ^ a.body[i])
			}
			if wrong != len(want)/10_000 {
				t.Errorf("%d bits are wrong", wrong)
			}
		}},
		{"bandwidth", Fault{Kind: Bandwidth, Rate: 2 << 20}, func(t *testing.T, a answer) {
			if a.err != nil || !bytes.Equal(a.body, want) {
				t.Errorf("%d bytes, %v", len(a.body), a.err)
			}
		}},
		{"redirect", Fault{Kind: Redirect, Lifetime: time.Hour}, func(t *testing.T, a answer) {
			if a.status != 206 || !bytes.Equal(a.body, want) {
				t.Errorf("status %d, %d bytes", a.status, len(a.body))
			}
		}},
		{"expired redirect", Fault{Kind: Redirect, Lifetime: 1}, func(t *testing.T, a answer) {
			if a.status != 403 {
				t.Errorf("status %d", a.status)
			}
		}},
		{"token", Fault{Kind: Token, Lifetime: time.Hour}, func(t *testing.T, a answer) {
			if challenge := a.header.Get("WWW-Authenticate"); a.status != 401 || !strings.HasPrefix(challenge, "Bearer realm=\"http://") {
				t.Errorf("status %d, challenge %q", a.status, challenge)
			}
		}},
		{"no request is allowed", Fault{Kind: RateLimit, Requests: 1e-9}, func(t *testing.T, a answer) {
			if a.status != 206 {
				t.Errorf("first: status %d", a.status)
			}
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := NewRegistry(http.HandlerFunc(serveBlob), 1)
			if err := r.Set(row.fault); err != nil {
				t.Fatal(err)
			}
			srv := httptest.NewServer(r)
			defer srv.Close()
			row.check(t, get(t, srv.Client(), srv.URL+blobPath, "1000-200999"))
		})
	}
}

// TestToken has a client ask for a token and use it until it expires.
func TestToken(t *testing.T) {
	r := NewRegistry(http.HandlerFunc(serveBlob), 1)
	if err := r.Set(Fault{Kind: Token, Lifetime: time.Hour}); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(r)
	defer srv.Close()
	token := get(t, srv.Client(), srv.URL+tokenPath, "")
	_, rest, ok := strings.Cut(string(token.body), `"token":"`)
	name, _, _ := strings.Cut(rest, `"`)
	if !ok {
		t.Fatalf("no token in %q", token.body)
	}
	req := httptest.NewRequest(http.MethodGet, blobPath, nil)
	req.Header.Set("Authorization", "Bearer "+name)
	if !r.authorized(req) {
		t.Error("the token is not good")
	}
	r.mu.Lock()
	r.issued[name] = time.Now().Add(-time.Second)
	r.mu.Unlock()
	if r.authorized(req) {
		t.Error("the token is good after its time")
	}
}

// TestStall has a body stop, and go on when the fault ends.
func TestStall(t *testing.T) {
	r := NewRegistry(http.HandlerFunc(serveBlob), 1)
	if err := r.Set(Fault{Kind: Stall, After: 50_000}); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(r)
	defer srv.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+blobPath, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	first := make([]byte, 50_000)
	if _, err := io.ReadFull(resp.Body, first); err != nil {
		t.Fatal(err)
	}
	if err := r.Set(Fault{}); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Equal(append(first, rest...), blob) {
		t.Errorf("%d more bytes, %v", len(rest), err)
	}
}

func TestCounts(t *testing.T) {
	r := NewRegistry(http.HandlerFunc(serveBlob), 1)
	srv := httptest.NewServer(r)
	get(t, srv.Client(), srv.URL+blobPath, "0-99")
	if err := r.Set(Fault{Kind: Status, Status: 503}); err != nil {
		t.Fatal(err)
	}
	refused := get(t, srv.Client(), srv.URL+"/v2/app/manifests/1", "")
	srv.Close() // waits for what is being answered
	c := r.Counts()
	if c.Requests != 2 || c.Bytes != 100+int64(len(refused.body)) || c.Subjects["blobs"] != 100 || c.Status[206] != 1 || c.Status[503] != 1 || c.Clients["127.0.0.1"] != 2 {
		t.Errorf("%+v", c)
	}
}

func TestCheck(t *testing.T) {
	for _, f := range []Fault{
		{Kind: "sideways"},
		{Kind: Slow},
		{Kind: Bandwidth},
		{Kind: Status, Status: 999},
		{Kind: RateLimit},
		{Kind: Redirect},
		{Kind: Token},
		{Kind: Flip},
		{Kind: Excess},
		{Kind: Cut, After: -1},
		{Kind: Cut, Share: 2},
		{Kind: Cut, Of: "tags"},
	} {
		if err := NewRegistry(nil, 1).Set(f); err == nil {
			t.Errorf("%+v is taken", f)
		}
	}
}

func TestGate(t *testing.T) {
	g, err := NewGate("127.0.0.1:0", func(addr string) (net.Listener, error) { return net.Listen("tcp", addr) })
	if err != nil {
		t.Fatal(err)
	}
	srv := &httptest.Server{Listener: g, Config: &http.Server{Handler: http.HandlerFunc(serveBlob)}}
	srv.Start()
	defer srv.Close()
	url := "http://" + g.Addr().String() + blobPath
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	try := func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	set := func(door Door) {
		t.Helper()
		if err := g.Set(door); err != nil {
			t.Fatal(err)
		}
	}
	if err := try(t.Context()); err != nil {
		t.Fatal("open: ", err)
	}
	set(Refuse)
	if err := try(t.Context()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Error("refused: ", err)
	}
	set(Open)
	if err := try(t.Context()); err != nil {
		t.Error("open again: ", err)
	}
	set(Swallow)
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := try(short); !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, context.DeadlineExceeded) {
		t.Error("swallowed: ", err)
	}
	waits := make(chan error, 1)
	go func() { waits <- try(t.Context()) }()
	set(Open)
	if err := <-waits; err != nil {
		t.Error("after a while: ", err)
	}
}
