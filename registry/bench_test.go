package registry

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// BenchmarkGet reads a blob of 64 MiB over loopback, as a whole and in parts.
// The client runs in the same process, so its work is in the figures.
func BenchmarkGet(b *testing.B) {
	const size = 64 << 20
	r := open(b, b.TempDir(), Config{})
	d := pushBlob(b, r, "a", strings.Repeat("0123456789abcdef", size/16))
	url := "http://" + serve(b, r, Config{}) + "/v2/a/blobs/" + d
	for _, part := range []struct {
		name string
		size int64
	}{{"64MiB", size}, {"1MiB", 1 << 20}, {"64KiB", 64 << 10}, {"4KiB", 4 << 10}} {
		b.Run("part="+part.name, func(b *testing.B) {
			b.SetBytes(part.size)
			b.ReportAllocs()
			buf := make([]byte, 256<<10)
			var off int64
			for b.Loop() {
				req, err := http.NewRequest("GET", url, nil)
				if err != nil {
					b.Fatal(err)
				}
				req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", off, off+part.size-1))
				off = (off + part.size) % size
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					b.Fatal(err)
				}
				n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{resp.Body}, buf)
				if resp.Body.Close(); err != nil || n != part.size {
					b.Fatalf("read %d bytes, %v", n, err)
				}
			}
		})
	}
}

// BenchmarkPush uploads a blob of 16 MiB in one request, new each time.
func BenchmarkPush(b *testing.B) {
	const size = 16 << 20
	r := open(b, b.TempDir(), Config{})
	body := strings.Repeat("x", size-16)
	b.SetBytes(size)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		content := fmt.Sprintf("%016d", n) + body
		d := sum(content)
		w := do(r, "POST", "/v2/a/blobs/uploads/?digest="+d, content)
		wantStatus(b, w, http.StatusCreated, "")
		wantStatus(b, do(r, "DELETE", "/v2/a/blobs/"+d, ""), http.StatusAccepted, "")
	}
}
