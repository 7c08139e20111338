package origin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"graze/chunk"
)

// A Blob is a blob of a repository, of which parts can be read. It holds no
// connection and needs no closing.
type Blob struct {
	c      *Client
	repo   repo
	digest chunk.Blob
	size   int64
	err    error // what is wrong with the names above
}

// UnknownSize stands for the size of a blob of which only some bytes are known to
// be there.
const UnknownSize = -1

// Blob returns the blob of a repository ("docker.io/library/alpine") that has the
// given digest and size, which may be UnknownSize. Names that can't be right are
// reported by ReadRange.
func (c *Client) Blob(repository string, digest chunk.Blob, size int64) *Blob {
	b := &Blob{c: c, digest: digest, size: size}
	if b.repo, b.err = parseRepo(repository); b.err == nil {
		b.err = checkDigest(digest)
	}
	if b.err == nil && size < UnknownSize {
		b.err = fmt.Errorf("size is negative: %d", size)
	}
	return b
}

// Size returns the length of the blob in bytes, or UnknownSize.
func (b *Blob) Size() int64 { return b.size }

// String returns the repository and the digest.
func (b *Blob) String() string { return b.repo.String() + "@" + string(b.digest) }

// RangesCost reports whether the host that would be asked for a range is known
// to answer with the whole blob, so that a range costs all bytes before it.
func (b *Blob) RangesCost() bool {
	es, err := b.endpoints()
	return err == nil && es[0].host.ignoresRanges(time.Now())
}

// endpoints returns whom to ask, those that ignore ranges last.
func (b *Blob) endpoints() ([]*endpoint, error) {
	if b.err != nil {
		return nil, b.err
	}
	es, err := b.c.endpoints(b.repo.registry, canPull)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	slices.SortStableFunc(es, func(x, y *endpoint) int {
		switch ix, iy := x.host.ignoresRanges(now), y.host.ignoresRanges(now); {
		case ix == iy:
			return 0
		case ix:
			return 1
		}
		return -1
	})
	return es, nil
}

// ReadRange returns a reader of exactly n bytes from off on, which the caller
// closes. The bytes are not verified. When a transfer breaks off or stalls, the
// reader asks for the rest by itself; if it can't get it, its error wraps
// io.ErrUnexpectedEOF. The end of ctx interrupts it at any time.
func (b *Blob) ReadRange(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	if b.err == nil && (off < 0 || n < 0 || off > math.MaxInt64-n || b.size != UnknownSize && off > b.size-n) {
		return nil, &chunk.Error{Op: "read", What: b.String(), Err: fmt.Errorf("%d bytes from %d on are not within its %d bytes", n, off, b.size)}
	}
	r := &rangeReader{ctx: ctx, b: b, start: off, next: off, end: off + n}
	if n == 0 && b.err == nil {
		return r, nil
	}
	var err error
	if r.body, err = b.open(ctx, off, n); err != nil {
		return nil, err
	}
	return r, nil
}

// open returns an answer whose body continues with the byte at off.
func (b *Blob) open(ctx context.Context, off, n int64) (*answer, error) {
	es, err := b.endpoints()
	if err != nil {
		return nil, &chunk.Error{Op: "read", What: b.String(), Err: err}
	}
	header := http.Header{
		"Range":           {fmt.Sprintf("bytes=%d-%d", off, off+n-1)},
		"Accept-Encoding": {"identity"},
	}
	var a *answer
	err = b.c.each(ctx, es, "read", b.String(), func(ctx context.Context, e *endpoint) error {
		got, err := b.askBlob(ctx, e, header)
		if err != nil {
			return err
		}
		if err := b.seek(e, got, off, n); err != nil {
			got.Body.Close()
			return from(e, got.host, err)
		}
		a = got
		return nil
	})
	return a, err
}

// seek checks that an answer has the range that was asked for, and skips what an
// answer with the whole blob has before it.
func (b *Blob) seek(e *endpoint, a *answer, off, n int64) error {
	if enc := a.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return corruptf("answer is encoded as %.50q, which was not asked for", enc)
	}
	if a.StatusCode == http.StatusPartialContent {
		e.host.setIgnoresRanges(false, time.Now())
		return b.checkPart(a, off, n)
	}
	if a.Header.Get("Content-Range") != "" {
		return corruptf("status 200 with Content-Range %.80q", a.Header.Get("Content-Range"))
	}
	if a.ContentLength >= 0 && b.size != UnknownSize && a.ContentLength != b.size {
		return corruptf("whole blob has %d bytes, not %d", a.ContentLength, b.size)
	}
	e.host.setIgnoresRanges(true, time.Now())
	if _, err := io.CopyN(io.Discard, a.Body, off); err != nil {
		if errors.Is(err, io.EOF) {
			return corruptf("whole blob has under %d bytes", off)
		}
		return err
	}
	return nil
}

// checkPart checks the header of an answer with status 206.
func (b *Blob) checkPart(a *answer, off, n int64) error {
	if t, _, _ := mime.ParseMediaType(a.Header.Get("Content-Type")); strings.HasPrefix(t, "multipart/") {
		return corruptf("one range was asked for and several came, as %.50q", t)
	}
	r, err := parseContentRange(a.Header.Get("Content-Range"))
	if err != nil {
		return corruptf("status 206: %w", err)
	}
	if r.first != off || r.last != off+n-1 {
		return corruptf("bytes %d-%d came, not %d-%d", r.first, r.last, off, off+n-1)
	}
	if r.total >= 0 && b.size != UnknownSize && r.total != b.size {
		return corruptf("blob has %d bytes, not %d", r.total, b.size)
	}
	if a.ContentLength >= 0 && a.ContentLength != n {
		return corruptf("%d bytes came, not %d", a.ContentLength, n)
	}
	return nil
}

const (
	maxResumes     = 4        // in a row, without real progress between them
	resumeProgress = 64 << 10 // what counts as that, in bytes
)

// A rangeReader reads a range of a blob, over as many answers as it takes.
type rangeReader struct {
	ctx     context.Context // of ReadRange; it bounds the life of the reader
	b       *Blob
	start   int64
	next    int64 // first byte that is still to come
	end     int64
	body    *answer // nil after Close, and for an empty range
	got     int64   // bytes since the last resume
	resumes int
	err     error // of all further reads
}

// Read implements io.Reader.
func (r *rangeReader) Read(p []byte) (int, error) {
	for r.err == nil && len(p) > 0 {
		if r.next == r.end {
			r.err = r.finish()
			break
		}
		n, err := r.body.Body.Read(p[:min(int64(len(p)), r.end-r.next)])
		r.next += int64(n)
		r.got += int64(n)
		if n > 0 {
			return n, nil // an error comes again with the next read
		}
		if err != nil {
			r.err = r.resume(err)
		}
	}
	return 0, r.err
}

// finish returns io.EOF, or an error if a part goes on after its end.
func (r *rangeReader) finish() error {
	if r.body == nil || r.body.StatusCode != http.StatusPartialContent {
		return io.EOF
	}
	var one [1]byte
	if n, _ := r.body.Body.Read(one[:]); n > 0 {
		return &chunk.Error{Op: "read", What: r.b.String(), From: r.body.host.name, Err: corruptf("more than the %d bytes came that were asked for", r.end-r.start)}
	}
	return io.EOF
}

// resume replaces a body that ended early, with err. It returns why it can't.
func (r *rangeReader) resume(err error) error {
	from := r.body.host
	r.body.Body.Close()
	if cause := ended(r.ctx); cause != nil {
		return cause
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("answer ended early")
		r.b.c.failed(from, err)
	}
	if r.got >= resumeProgress {
		r.resumes = 0
	}
	r.got = 0
	if r.resumes++; r.resumes > maxResumes {
		return r.short(&chunk.Error{Op: "read", What: r.b.String(), From: from.name, Err: unavailable(err)})
	}
	if r.resumes > 1 {
		if err := sleep(r.ctx, r.b.c.cfg.Retry.backoff(r.resumes, jitter())); err != nil {
			return err
		}
	}
	from.retries.Add(1)
	body, err := r.b.open(r.ctx, r.next, r.end-r.next)
	if err == nil {
		r.body = body
		return nil
	}
	var e *chunk.Error
	if errors.As(err, &e) {
		return r.short(e)
	}
	return err
}

// short adds to an error that the range was not read to its end.
func (r *rangeReader) short(e *chunk.Error) error {
	e.Err = fmt.Errorf("%w after %d of %d bytes: %w", io.ErrUnexpectedEOF, r.next-r.start, r.end-r.start, e.Err)
	return e
}

// Close implements io.Closer.
func (r *rangeReader) Close() error {
	if r.body == nil {
		return nil
	}
	err := r.body.Body.Close()
	r.body = nil
	r.err = errors.New("read of a closed reader")
	return err
}
