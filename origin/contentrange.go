package origin

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// A contentRange says which bytes an answer has: from first to last, inclusive,
// of total, which is -1 if the server doesn't know it.
type contentRange struct{ first, last, total int64 }

// parseContentRange parses a Content-Range header (RFC 9110, 14.4) of a range
// that is there: "bytes 0-499/1234".
func parseContentRange(s string) (r contentRange, err error) {
	bad := func(why string) (contentRange, error) {
		return contentRange{}, fmt.Errorf("Content-Range %.80q: %s", s, why)
	}
	if s == "" {
		return contentRange{}, errors.New("no Content-Range")
	}
	unit, rest, _ := strings.Cut(s, " ")
	if !strings.EqualFold(unit, "bytes") {
		return bad("unit is not bytes")
	}
	span, total, ok := strings.Cut(strings.TrimSpace(rest), "/")
	if !ok {
		return bad("no total")
	}
	first, last, ok := strings.Cut(span, "-")
	if !ok {
		return bad("no range")
	}
	if r.first, ok = parseSize(first); !ok {
		return bad("first byte is no number")
	}
	if r.last, ok = parseSize(last); !ok {
		return bad("last byte is no number")
	}
	if r.total = -1; total != "*" {
		if r.total, ok = parseSize(total); !ok {
			return bad("total is no number")
		}
	}
	if r.last < r.first || r.total >= 0 && r.last >= r.total {
		return bad("bytes are out of order")
	}
	return r, nil
}

// parseSize parses a number without sign that fits an int64.
func parseSize(s string) (int64, bool) {
	if !isDigits(s) {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}
