package snapshotter

import (
	"context"
	"errors"

	"graze/chunk"
)

// A Reason says why an image is served lazily, or is pulled instead. It is meant
// for programs: metrics, tests, alerts.
type Reason string

// The reasons.
const (
	Lazy        Reason = "lazy"          // it is served lazily
	ByPolicy    Reason = "policy"        // the policy for its repository is to pull
	Small       Reason = "small"         // so little is pulled faster than it is mounted
	Fetched     Reason = "fetched"       // the client had containerd fetch the layer before it asked
	Unnamed     Reason = "no-image-name" // neither labels nor containerd's content say which image the layer is of
	NoIndex     Reason = "no-index"      // a layer has none, and none may be made
	NotFound    Reason = "not-found"     // the registry does not have the image, or the image not the layer
	Denied      Reason = "denied"        // the registry refuses the node's credentials
	Unavailable Reason = "unavailable"   // the registry does not answer
	Corrupt     Reason = "corrupt"       // what was fetched is not what its digest says
	Unsupported Reason = "unsupported"   // anything else; the log and 'graze ps' have the error
)

// Reasons returns all reasons there are.
func Reasons() []Reason {
	return []Reason{Lazy, ByPolicy, Small, Fetched, Unnamed, NoIndex, NotFound, Denied, Unavailable, Corrupt, Unsupported}
}

// ErrNoIndex is how Images report that a layer has no index and none may be made.
var ErrNoIndex = errors.New("layer has no index")

// reasonFor returns why an image can't be served lazily.
func reasonFor(err error) Reason {
	switch {
	case errors.Is(err, ErrNoIndex):
		return NoIndex
	case errors.Is(err, chunk.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return Unavailable
	case errors.Is(err, chunk.ErrDenied):
		return Denied
	case errors.Is(err, chunk.ErrNotFound):
		return NotFound
	case errors.Is(err, chunk.ErrCorrupt):
		return Corrupt
	}
	return Unsupported
}
