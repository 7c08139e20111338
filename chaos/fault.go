package chaos

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// A Kind names a way in which a registry's answers are wrong.
type Kind string

// The kinds of faults. What a kind uses of its Fault stands beside it.
const (
	None      Kind = ""           // answers are as they should be
	Slow      Kind = "slow"       // Delay: each answer begins later
	Bandwidth Kind = "bandwidth"  // Rate: bodies share so many bytes/s
	Stall     Kind = "stall"      // After: a body stops there, its connection stays
	Cut       Kind = "cut"        // After: a body ends there, with its connection
	Status    Kind = "status"     // Status, RetryAfter: instead of an answer
	RateLimit Kind = "rate-limit" // Requests, RetryAfter: 429 above so many a second
	WholeBody Kind = "whole-body" // Range is ignored: 200 with all of the blob
	Multipart Kind = "multipart"  // Range is answered as multipart/byteranges
	Excess    Kind = "excess"     // After: so many bytes too many, and counted in the length
	NoLength  Kind = "no-length"  // bodies have no Content-Length
	Flip      Kind = "flip"       // After: in each such stretch of a body one bit is wrong
	Redirect  Kind = "redirect"   // Lifetime: blobs are at other URLs, which expire
	Token     Kind = "token"      // Lifetime: requests need a bearer token, which expires
)

// kinds lists all kinds but None.
var kinds = []Kind{
	Slow, Bandwidth, Stall, Cut, Status, RateLimit, WholeBody, Multipart, Excess, NoLength, Flip, Redirect, Token,
}

// A Subject names a part of the distribution API.
type Subject string

// The parts of the API that a fault can be limited to.
const (
	Everything Subject = ""
	Manifests  Subject = "manifests"
	Blobs      Subject = "blobs"
	Referrers  Subject = "referrers"
)

// A Fault is what is wrong with a registry's answers. The zero value is nothing.
type Fault struct {
	Kind Kind
	Of   Subject // what is asked for

	// Share is the part of the requests that it strikes, at random: above 0 and
	// up to 1. 0 means all.
	Share float64

	Delay      time.Duration
	Rate       int64         // bytes/s
	After      int64         // bytes
	Status     int           // of HTTP
	RetryAfter time.Duration // in whole seconds; 0 leaves the header out
	Requests   float64       // a second
	Lifetime   time.Duration
}

// Check returns what is wrong with the fault itself.
func (f Fault) Check() error {
	var missing string
	switch f.Kind {
	case Slow:
		missing = absent(f.Delay <= 0, "delay")
	case Bandwidth:
		missing = absent(f.Rate <= 0, "rate")
	case Status:
		missing = absent(http.StatusText(f.Status) == "", "status")
	case RateLimit:
		missing = absent(f.Requests <= 0, "requests")
	case Redirect, Token:
		missing = absent(f.Lifetime <= 0, "lifetime")
	case Excess, Flip:
		missing = absent(f.After <= 0, "after")
	case None:
	default:
		if !slices.Contains(kinds, f.Kind) {
			return fmt.Errorf("a registry has no fault %q; there are %q", f.Kind, kinds)
		}
	}
	switch {
	case missing != "":
		return fmt.Errorf("fault %q needs %q", f.Kind, missing)
	case f.Share < 0 || f.Share > 1:
		return fmt.Errorf("fault %q: share %v is not between 0 and 1", f.Kind, f.Share)
	case f.After < 0 || f.RetryAfter < 0:
		return fmt.Errorf("fault %q: a number is negative", f.Kind)
	case !slices.Contains([]Subject{Everything, Manifests, Blobs, Referrers}, f.Of):
		return errors.New("a fault is of manifests, blobs, referrers or, with none named, of everything")
	}
	return nil
}

// absent returns name if a setting is absent.
func absent(is bool, name string) string {
	if is {
		return name
	}
	return ""
}
