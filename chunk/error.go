package chunk

import (
	"errors"
	"strings"
)

// What can be wrong with a chunk or its source. Test for them with errors.Is.
var (
	// ErrNotFound: the source has no such chunk or blob.
	ErrNotFound = errors.New("not found")
	// ErrCorrupt: the bytes are not what their digest or format says.
	ErrCorrupt = errors.New("corrupt")
	// ErrUnavailable: the source can't answer now; asking again later may help.
	ErrUnavailable = errors.New("unavailable")
	// ErrDenied: the source refuses this caller.
	ErrDenied = errors.New("access denied")
	// ErrFull: the store has no room for the chunk and can't make any. The
	// bytes themselves are good.
	ErrFull = errors.New("store is full")
)

// An Error reports a failed operation on one chunk or blob.
type Error struct {
	Op   string // what was done: "fetch", "decode", "store", "read"
	What string // the chunk, span or blob it was done to
	From string // where the bytes came from: a registry, a peer or a file; may be empty
	Err  error
}

// Error returns the operation, what it was done to, the source and the cause.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.What != "" {
		b.WriteString(" " + e.What)
	}
	if e.From != "" {
		b.WriteString(" from " + e.From)
	}
	b.WriteString(": ")
	b.WriteString(e.Err.Error())
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
