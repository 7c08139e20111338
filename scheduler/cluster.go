package scheduler

import (
	"context"
	"io"
	"os"
	"time"

	"graze/chunk"
)

// The levels of work. A request of a level waits only on work of a higher one,
// which is why no requests can wait for each other in a circle.
const (
	ownLevel     = -1 // a reader of this node: it may wait on anything
	rackLevel    = 0  // the rack home is asked
	clusterLevel = 1  // the cluster home is asked
	originLevel  = 2  // the origin is asked
	numLevels    = 3
)

// All, as the Item or the Part of a [PeerAnswer], stands for all that have no
// answer yet.
const All = -1

// Limits of what peers may say and ask.
const (
	// MaxHolders is the most holders that an answer names.
	MaxHolders = 8
	// maxVia is the most nodes that may have passed a request on.
	maxVia = 3
	// maxRequestParts bounds the wanted parts of a request that is served.
	maxRequestParts = 1024
)

// A Cluster knows who the members are and who is home of what. Its methods are
// called often, by many goroutines and with locks held: they answer at once
// from memory and don't call the scheduler.
type Cluster interface {
	// Self is this node's name.
	Self() chunk.PeerID
	// Route says who is to be asked for the chunks of span. It appends to dst's
	// slices.
	Route(span *chunk.Span, dst *Route)
	// Place says where a node is; ok is false if it is neither a member nor one
	// that Route may name.
	Place(id chunk.PeerID) (p Place, ok bool)
	// Share is the part of the cluster's registry budget that is this node's,
	// from 0 to 1.
	Share() float64
}

// A Place says where a node is.
type Place struct {
	Rack, Zone string
	Outside    bool // of the cluster
}

// A Route is who may be asked for the chunks of a span. This node may be in it.
type Route struct {
	// Rack are the homes in this node's rack, the first in line first; empty if
	// the rack is too small to have homes of its own.
	Rack []chunk.PeerID
	// Cluster are the homes in the whole cluster, the first in line first.
	Cluster []chunk.PeerID
	// Former are nodes that were first in line until lately.
	Former []chunk.PeerID
	// Outside are nodes outside the cluster that say they hold the image that the
	// span belongs to; the most promising first.
	Outside []chunk.PeerID
	// Epoch names the view of the members that all this was taken from.
	Epoch uint64
}

// Peers sends requests to other nodes.
type Peers interface {
	// Fetch sends req and calls got for each answer, in the order in which they
	// come, from one goroutine, until the request is done. Body is that of an
	// answer with StatusBytes, of exactly Size bytes, and valid during the call.
	// An error of got ends the request and is returned. A peer that is silent for
	// some seconds is an error: one that works on a request says so. The error of one
	// that does not keep to the protocol wraps chunk.ErrCorrupt.
	Fetch(ctx context.Context, to chunk.PeerID, req *PeerRequest, got func(a *PeerAnswer, body io.Reader) error) error
}

// A Mode says what a request is after. The numbers are those of the protocol.
type Mode uint8

// The modes.
const (
	ModeHeld Mode = 1 // what the node holds, or, of level 0, will have in a moment
	ModeHome Mode = 2 // all of it: the node is to fetch what it lacks
	ModeFind Mode = 3 // like ModeHeld, or the names of those who are said to hold it
)

// A PeerRequest asks a node for chunks.
type PeerRequest struct {
	Class    chunk.Class
	Deadline time.Duration // that is left; 0: none
	Mode     Mode
	Level    uint8          // with ModeHome: 0 as the home of a rack, 1 of the cluster
	Via      []chunk.PeerID // who passed it on, the first client first
	Epoch    uint64
	Items    []PeerItem
}

// A PeerItem is a span and which of its parts are wanted.
type PeerItem struct {
	Span  chunk.Span
	Parts []int // rising; nil: all
}

// A Status is the kind of an answer. The numbers are those of the protocol.
type Status uint8

// The statuses.
const (
	StatusBytes    Status = 1 // the chunk follows
	StatusRedirect Status = 2 // ask the Holders
	StatusBusy     Status = 3 // ask again after Wait, or elsewhere
	StatusAbsent   Status = 4 // not held, and not going to be
	StatusFailed   Status = 5 // the origin refused, or gave wrong bytes
)

// A PeerAnswer says what becomes of a part of a [PeerRequest].
type PeerAnswer struct {
	Item, Part int // Part is the index in the span's Parts; both may be All
	Status     Status
	Size       int32 // of the body, with StatusBytes
	Holders    []chunk.PeerID
	Wait       time.Duration
	Reason     string // by a stranger
}

// A Section is where a chunk's bytes lie in a file. The file is not changed or
// closed before Close.
type Section interface {
	File() *os.File
	Offset() int64
	Len() int64
	Close() error
}

// A Sectioner is a [Store] whose chunks can be sent from its files.
type Sectioner interface {
	Section(id chunk.ID) (Section, error)
}

// A Responder takes the answers to a request that this node serves. Its methods
// return when the answer has been sent, with an error when there is no use in
// sending more.
type Responder interface {
	Section(item, part int, s Section) error
	Bytes(item, part int, p []byte) error
	Answer(a *PeerAnswer) error
}

// A Tier says how far away a source is.
type Tier int

// The tiers, nearest first.
const (
	TierRack Tier = iota
	TierZone
	TierFar
	TierOutside // of the cluster
	numTiers
)

// String returns the tier's name.
func (t Tier) String() string {
	switch t {
	case TierRack:
		return "rack"
	case TierZone:
		return "zone"
	case TierOutside:
		return "outside"
	}
	return "far"
}

// tierOf returns how far b is from a.
func tierOf(a, b Place) Tier {
	switch {
	case a.Outside || b.Outside:
		return TierOutside
	case a.Zone != b.Zone:
		return TierFar
	case a.Rack != b.Rack:
		return TierZone
	}
	return TierRack
}

// penalty is what a source of the tier is taken to cost beyond its own speed.
func (t Tier) penalty() time.Duration {
	switch t {
	case TierRack:
		return 0
	case TierZone:
		return 2 * time.Millisecond
	}
	return 20 * time.Millisecond
}
