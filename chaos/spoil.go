package chaos

import (
	"context"
	"net/http"
	"strconv"

	"golang.org/x/time/rate"
)

// pieceSize is how much of a body is paced and looked at in one go, in bytes.
const pieceSize = 32 << 10

// A spoiledWriter spoils the body of one answer, or its length.
type spoiledWriter struct {
	http.ResponseWriter
	req   *http.Request
	fault Fault
	limit *rate.Limiter
	ended context.Context         // when the fault has
	bit   func(bytes int64) int64 // a random bit
	sent  int64                   // bytes of the body
	wrong int64                   // the next bit to be flipped, from the body's start
	begun bool
}

// WriteHeader implements http.ResponseWriter.
func (w *spoiledWriter) WriteHeader(status int) {
	if w.begun {
		return
	}
	w.begun = true
	h := w.Header()
	switch w.fault.Kind {
	case NoLength:
		h.Del("Content-Length")
	case Excess:
		if n, err := strconv.ParseInt(h.Get("Content-Length"), 10, 64); err == nil && w.hasBody(status) {
			h.Set("Content-Length", strconv.FormatInt(n+w.fault.After, 10))
		}
	case Flip:
		w.wrong = w.bit(w.fault.After)
	}
	w.ResponseWriter.WriteHeader(status)
	if w.fault.Kind == NoLength {
		// What is sent before the end is known is sent in chunks.
		_ = http.NewResponseController(w.ResponseWriter).Flush()
	}
}

// hasBody reports whether an answer has a body that is worth spoiling.
func (w *spoiledWriter) hasBody(status int) bool {
	return w.req.Method == http.MethodGet && (status == http.StatusOK || status == http.StatusPartialContent)
}

// Write implements http.ResponseWriter.
func (w *spoiledWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	written := 0
	for len(p) > 0 {
		n, err := w.writePiece(p[:min(len(p), pieceSize)])
		written += n
		if err != nil {
			return written, err
		}
		p = p[n:]
	}
	return written, nil
}

// writePiece writes a piece of the body, at most as much as the fault lets
// through at once.
func (w *spoiledWriter) writePiece(p []byte) (int, error) {
	switch left := w.fault.After - w.sent; w.fault.Kind {
	case Stall:
		if left <= 0 && w.ended.Err() == nil {
			_ = http.NewResponseController(w.ResponseWriter).Flush()
			select {
			case <-w.req.Context().Done():
				return 0, w.req.Context().Err()
			case <-w.ended.Done():
			}
		} else if left > 0 {
			p = p[:min(int64(len(p)), left)]
		}
	case Cut:
		if left <= 0 {
			_ = http.NewResponseController(w.ResponseWriter).Flush()
			panic(http.ErrAbortHandler) // which closes the connection
		}
		p = p[:min(int64(len(p)), left)]
	case Bandwidth:
		if w.ended.Err() == nil {
			w.pace(len(p))
		}
	case Flip:
		p = w.flipped(p)
	}
	n, err := w.ResponseWriter.Write(p)
	w.sent += int64(n)
	return n, err
}

// pace waits until n more bytes may be sent.
func (w *spoiledWriter) pace(n int) {
	ctx, cancel := context.WithCancel(w.req.Context())
	defer cancel()
	defer context.AfterFunc(w.ended, cancel)()
	_ = w.limit.WaitN(ctx, n) // its errors are those of ctx, which ends the wait
}

// flipped returns p, or a copy with one bit wrong in each stretch of After bytes
// of the body.
func (w *spoiledWriter) flipped(p []byte) []byte {
	out := p
	for w.wrong/8 < w.sent+int64(len(p)) {
		if &out[0] == &p[0] {
			out = append([]byte(nil), p...)
		}
		out[w.wrong/8-w.sent] ^= 1 << (w.wrong % 8)
		stretch := w.wrong/8/w.fault.After + 1
		w.wrong = 8*stretch*w.fault.After + w.bit(w.fault.After)
	}
	return out
}

// finish ends the body.
func (w *spoiledWriter) finish() {
	if w.fault.Kind != Excess || w.sent == 0 || w.req.Method != http.MethodGet {
		return
	}
	_, _ = w.ResponseWriter.Write(make([]byte, w.fault.After))
}

// Unwrap is for http.ResponseController.
func (w *spoiledWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
