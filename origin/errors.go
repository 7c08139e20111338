package origin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"graze/chunk"
)

// Why a request was ended by this side.
var (
	errNoConnection = errors.New("no connection in time")
	errNoAnswer     = errors.New("no answer in time")
	errStalled      = errors.New("transfer has stalled")
)

// maxQuote bounds what is quoted from a server, in bytes.
const maxQuote = 200

// A statusError is an answer that says no.
type statusError struct {
	status int
	code   string // of the registry's error document, "MANIFEST_UNKNOWN"; may be empty
	text   string // its message, or the body's beginning; may be empty
	hint   string // what to do about it; may be empty
}

func (e *statusError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "status %d", e.status)
	if t := http.StatusText(e.status); t != "" {
		b.WriteString(" " + t)
	}
	if e.code != "" {
		fmt.Fprintf(&b, " %.50q", e.code)
	}
	if e.text != "" {
		fmt.Fprintf(&b, " %.*q", maxQuote, e.text)
	}
	if e.hint != "" {
		b.WriteString(" (" + e.hint + ")")
	}
	return b.String()
}

// Unwrap returns which of chunk's errors the status stands for; nil if none.
func (e *statusError) Unwrap() error {
	switch {
	case e.status == http.StatusNotFound, e.status == http.StatusGone:
		return chunk.ErrNotFound
	case e.status == http.StatusUnauthorized, e.status == http.StatusForbidden,
		e.status == http.StatusUnavailableForLegalReasons, e.status == http.StatusProxyAuthRequired:
		return chunk.ErrDenied
	case e.status == http.StatusRequestedRangeNotSatisfiable:
		return chunk.ErrCorrupt // the host's copy is shorter than the manifest says
	case e.status == http.StatusRequestTimeout, e.status == http.StatusTooManyRequests,
		e.status >= 500 && e.status != http.StatusNotImplemented:
		return chunk.ErrUnavailable
	}
	return nil
}

// newStatusError makes an error of an answer and reads the beginning of its
// body.
func newStatusError(resp *http.Response) *statusError {
	e := &statusError{status: resp.StatusCode}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 8<<10)) // what there is of it is enough
	var doc struct {
		Errors []struct{ Code, Message string }
	}
	if json.Unmarshal(body, &doc) == nil && len(doc.Errors) > 0 {
		e.code, e.text = doc.Errors[0].Code, doc.Errors[0].Message
	} else {
		e.text = strings.TrimSpace(string(body[:min(len(body), maxQuote)]))
	}
	if resp.StatusCode == http.StatusBadRequest && strings.Contains(e.text, "HTTP request to an HTTPS server") {
		e.hint = "the registry wants TLS: don't use --plain-http, or give an https:// server in hosts.toml"
	}
	return e
}

// statusOf returns the status of the answer that err reports, 0 if it's none.
func statusOf(err error) int {
	var e *statusError
	if errors.As(err, &e) {
		return e.status
	}
	return 0
}

// A classError is a cause together with the one of chunk's errors it stands for.
type classError struct {
	class error
	err   error
}

func (e *classError) Error() string   { return e.err.Error() }
func (e *classError) Unwrap() []error { return []error{e.class, e.err} }

func unavailable(err error) error { return &classError{chunk.ErrUnavailable, err} }
func denied(err error) error      { return &classError{chunk.ErrDenied, err} }

// corruptf reports bytes or answers that are not what they must be.
func corruptf(format string, args ...any) error {
	return &classError{chunk.ErrCorrupt, fmt.Errorf(format, args...)}
}

// ended returns the cause if ctx is done, which is then all that there is to
// report.
func ended(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}
