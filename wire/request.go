package wire

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"graze/chunk"
)

// Limits of a request.
const (
	MaxItems        = 1024
	MaxParts        = 1024 // of all spans of a request, those of windows among them
	MaxVia          = 8
	MaxRepositories = 8
	MaxImages       = 4
	MaxLevel        = 1
	MaxDeadline     = 24 * time.Hour

	maxPeerID     = 128
	maxRepository = 512
	maxBlob       = 256
)

// A Mode says what a request is after.
type Mode uint8

// The modes.
const (
	// Held asks for what the node holds already. It never waits for a fetch.
	Held Mode = 1
	// Home asks the node to serve the request as a home of its Level: it
	// fetches what it does not hold.
	Home Mode = 2
	// Find is Held, and asks for the names of those who are said to hold what the
	// node does not.
	Find Mode = 3
)

// String returns the mode's name.
func (m Mode) String() string {
	switch m {
	case Held:
		return "held"
	case Home:
		return "home"
	case Find:
		return "find"
	}
	return fmt.Sprintf("mode(%d)", uint8(m))
}

// A Request asks a node for chunks.
type Request struct {
	Class chunk.Class

	// Deadline is how much time the client has left; 0: no limit. It is sent as
	// whole microseconds, rounded up.
	Deadline time.Duration

	Mode Mode

	// Level, with Home, is the rank of home that the node is asked as: 0 of the
	// client's rack, 1 of the cluster. The node serves it as that, whatever it
	// believes itself, and waits only on work of a higher level.
	Level uint8

	// Via are the nodes that passed the request on, the first client first. A
	// node that finds itself in it refuses.
	Via []chunk.PeerID

	// Epoch is the client's view of the members, for finding out that views
	// differ.
	Epoch uint64

	// Repositories may have the blobs of the items: names of the form
	// "registry.example/team/app", never URLs.
	Repositories []string

	// Images have the blobs of the items: digests of manifests. Holders beyond the
	// node's own cluster are found by them.
	Images []chunk.Blob

	Items []Item
}

// An Item is a span and which of its parts are wanted. With Held and Find, the
// span needs nothing but Parts.
type Item struct {
	Span  chunk.Span
	Parts []int // rising; nil: all
}

// Wants reports whether part is among those that are wanted.
func (it *Item) Wants(part int) bool {
	if it.Parts == nil {
		return part >= 0 && part < len(it.Span.Parts)
	}
	for _, p := range it.Parts {
		if p == part {
			return true
		}
	}
	return false
}

// Wanted returns the number of parts that are wanted.
func (it *Item) Wanted() int {
	if it.Parts == nil {
		return len(it.Span.Parts)
	}
	return len(it.Parts)
}

// Wanted returns the number of parts of all items that are wanted, which is the
// number of answers that the request can get.
func (q *Request) Wanted() int {
	n := 0
	for i := range q.Items {
		n += q.Items[i].Wanted()
	}
	return n
}

// Check returns an error unless q can be sent. A Request that was read has
// passed it.
func (q *Request) Check() error {
	if q.Class >= chunk.NumClasses {
		return fmt.Errorf("unknown %s", q.Class)
	}
	if q.Deadline < 0 || q.Deadline > MaxDeadline {
		return fmt.Errorf("deadline %v is not between 0 and %v", q.Deadline, MaxDeadline)
	}
	if q.Mode < Held || q.Mode > Find {
		return fmt.Errorf("unknown %s", q.Mode)
	}
	if q.Level > MaxLevel {
		return fmt.Errorf("level %d is above %d", q.Level, MaxLevel)
	}
	if len(q.Via) > MaxVia {
		return fmt.Errorf("%d nodes passed it on, the limit is %d", len(q.Via), MaxVia)
	}
	for _, id := range q.Via {
		if err := checkPeerID(id); err != nil {
			return err
		}
	}
	if len(q.Repositories) > MaxRepositories {
		return fmt.Errorf("%d repositories, the limit is %d", len(q.Repositories), MaxRepositories)
	}
	for _, name := range q.Repositories {
		if err := checkRepository(name); err != nil {
			return err
		}
	}
	if len(q.Images) > MaxImages {
		return fmt.Errorf("%d images, the limit is %d", len(q.Images), MaxImages)
	}
	for _, digest := range q.Images {
		if err := checkBlob(digest); err != nil {
			return err
		}
	}
	return q.checkItems()
}

func (q *Request) checkItems() error {
	if len(q.Items) == 0 {
		return errors.New("it asks for nothing")
	}
	if len(q.Items) > MaxItems {
		return fmt.Errorf("%d items, the limit is %d", len(q.Items), MaxItems)
	}
	parts := 0
	for i := range q.Items {
		it := &q.Items[i]
		parts += len(it.Span.Parts)
		if it.Span.Window != nil {
			parts += len(it.Span.Window.Span.Parts)
		}
	}
	if parts > MaxParts {
		return fmt.Errorf("%d parts, the limit is %d", parts, MaxParts)
	}
	for i := range q.Items {
		if err := q.Items[i].check(q.Mode); err != nil {
			return fmt.Errorf("item %d: %w", i, err)
		}
	}
	return nil
}

func (it *Item) check(m Mode) error {
	if err := checkSpan(&it.Span, m); err != nil {
		return err
	}
	if it.Parts != nil && len(it.Parts) == 0 {
		return errors.New("no part is wanted")
	}
	last := -1
	for _, p := range it.Parts {
		if p <= last || p >= len(it.Span.Parts) {
			return fmt.Errorf("wanted part %d comes after %d of %d", p, last, len(it.Span.Parts))
		}
		last = p
	}
	return nil
}

// checkPeerID accepts what can be a peer id in text: letters and digits.
func checkPeerID(id chunk.PeerID) error {
	if id == "" || len(id) > maxPeerID || strings.IndexFunc(string(id), notAlphanumeric) >= 0 {
		return fmt.Errorf("%.80q is no peer id", string(id))
	}
	return nil
}

func notAlphanumeric(r rune) bool {
	return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
}

// checkRepository accepts a host, which may have a port, and a path. A URL has
// a double slash, which no name has.
func checkRepository(name string) error {
	bad := func(r rune) bool { return notAlphanumeric(r) && !strings.ContainsRune(".-_:/[]", r) }
	host, path, ok := strings.Cut(name, "/")
	if !ok || host == "" || path == "" || len(name) > maxRepository || strings.IndexFunc(name, bad) >= 0 ||
		strings.Contains(name, "//") || strings.Contains(name, "..") || strings.HasSuffix(name, "/") {
		return fmt.Errorf("%.80q is no name of a repository", name)
	}
	return nil
}
