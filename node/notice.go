package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	libp2p "github.com/libp2p/go-libp2p/core/peer"

	"graze/chunk"
	"graze/copies"
	"graze/dht"
)

// Nodes tell each other of images by notices: short messages on a libp2p stream,
// one JSON object each way. Only members of the cluster can send any, as the
// libp2p hosts form a private network.
const (
	noticeProtocol = "/graze/notice/1"
	maxNotice      = 64 << 10
	noticeTimeout  = 10 * time.Second // for a notice, and for the first answer
)

// The kinds of notices.
const (
	// mountedNotice tells a seed that a node of its rack has mounted an image.
	mountedNotice = "mounted"
	// preheatNotice asks a node to fetch the part of an image that it is the home
	// of. It is answered when that is done.
	preheatNotice = "preheat"
	// indexNotice asks the home of a layer for the layer's index.
	indexNotice = "index"
	// useNotice tells the steward of an image that a node has it mounted, and is
	// answered with what is known of the image.
	useNotice = "use"
	// keepNotice asks a node to keep its share of an image, of which there are so
	// many copies, and is answered with how much of that is there.
	keepNotice = "keep"
	// downNotice tells the home of a registry that it has failed for a node, and
	// upNotice tells that node when it is back.
	downNotice = "down"
	upNotice   = "up"
	// lookupNotice asks the home of a lookup for its answer, or any node for what
	// it knows of it.
	lookupNotice = "lookup"
	// tailNotice asks the home of a layer that has a table of contents for the
	// layer's end.
	tailNotice = "tail"
	// blobNotice asks the home of a blob that is too large for a chunk to have it.
	blobNotice = "blob"
	// holdingNotice asks a node outside the pool how much of an image it has.
	holdingNotice = "holding"
)

// A notice is a message to another node.
type notice struct {
	Kind      string `json:"kind"`
	Reference string `json:"reference,omitempty"` // of an image, with its digest

	Index  *wantedIndex `json:"index,omitempty"`
	Lookup *askedLookup `json:"lookup,omitempty"`
	Blob   *blobSource  `json:"blob,omitempty"`
	Tail   *wantedTail  `json:"tail,omitempty"`
	Image  chunk.Blob   `json:"image,omitempty"` // digest of its manifest
	Copies int          `json:"copies,omitempty"`

	Registry string `json:"registry,omitempty"`
}

// A noticeReply is the answer to a notice.
type noticeReply struct {
	Error  string `json:"error,omitempty"`
	Reason string `json:"reason,omitempty"` // of the error, one of reasons
	Spans  int    `json:"spans,omitempty"`  // of the image that the node is the home of

	Index   *layerRecord `json:"index,omitempty"`
	Finding *toldFinding `json:"finding,omitempty"`
	Holding *holding     `json:"holding,omitempty"`

	Watched bool `json:"watched,omitempty"` // the node probes the registry

	Tail   *tailRecord    `json:"tail,omitempty"`
	Status *copies.Status `json:"status,omitempty"`
	Report *copies.Report `json:"report,omitempty"`
}

// reasons are those of package chunk's errors that nodes tell each other.
var reasons = map[string]error{
	"not found":   chunk.ErrNotFound,
	"denied":      chunk.ErrDenied,
	"unavailable": chunk.ErrUnavailable,
	"corrupt":     chunk.ErrCorrupt,
}

// A noticeError is what another node has answered.
type noticeError struct {
	node   string
	text   string
	reason error // nil if the node gave none
}

func (e *noticeError) Error() string { return fmt.Sprintf("node %s: %.300q", e.node, e.text) }
func (e *noticeError) Unwrap() error { return e.reason }

// fail makes r report err.
func (r *noticeReply) fail(err error) {
	r.Error = err.Error()
	for name, reason := range reasons {
		if errors.Is(err, reason) {
			r.Reason = name
		}
	}
}

// tell sends a notice to another node and returns its answer.
func (m *members) tell(ctx context.Context, to *dht.Member, msg notice) (noticeReply, error) {
	var reply noticeReply
	id, err := libp2p.Decode(string(to.ID))
	if err != nil {
		return reply, err
	}
	dial, cancel := context.WithTimeout(ctx, noticeTimeout)
	defer cancel()
	s, err := m.host.P2P().NewStream(dial, id, noticeProtocol)
	if err != nil {
		return reply, fmt.Errorf("reach node %s: %w", to.Name, err)
	}
	defer s.Close()
	stop := context.AfterFunc(ctx, func() { s.Reset() })
	defer stop()
	if err := writeJSON(s, msg); err != nil {
		return reply, err
	}
	if err := s.CloseWrite(); err != nil {
		return reply, err
	}
	if err := readJSON(s, &reply); err != nil {
		return reply, fmt.Errorf("answer of node %s: %w", to.Name, err)
	}
	if reply.Error != "" {
		return reply, &noticeError{to.Name, reply.Error, reasons[reply.Reason]}
	}
	return reply, nil
}

// serveNotices answers notices, and requests for small blobs, until ctx is done.
func (n *Node) serveNotices(ctx context.Context) {
	n.members.host.P2P().SetStreamHandler(blobProtocol, n.serveBlob)
	n.members.host.P2P().SetStreamHandler(holdsProtocol, n.serveHolds)
	n.members.host.P2P().SetStreamHandler(noticeProtocol, func(s network.Stream) {
		defer s.Close()
		var msg notice
		if err := errors.Join(s.SetReadDeadline(time.Now().Add(noticeTimeout)), readJSON(s, &msg)); err != nil {
			s.Reset()
			return
		}
		reply, err := n.onNotice(ctx, chunk.PeerID(s.Conn().RemotePeer().String()), msg)
		if err != nil {
			reply.fail(err)
		}
		if err := writeJSON(s, reply); err != nil {
			s.Reset()
		}
	})
	<-ctx.Done()
	n.members.host.P2P().RemoveStreamHandler(noticeProtocol)
	n.members.host.P2P().RemoveStreamHandler(blobProtocol)
	n.members.host.P2P().RemoveStreamHandler(holdsProtocol)
}

// onNotice does what a notice of another node, or of this one, is about.
func (n *Node) onNotice(ctx context.Context, from chunk.PeerID, msg notice) (noticeReply, error) {
	switch msg.Kind {
	case mountedNotice:
		if n.seeds == nil {
			return noticeReply{}, nil
		}
		return noticeReply{}, n.seeds.Add(msg.Reference)
	case preheatNotice:
		spans, err := n.preheatShare(ctx, msg.Reference)
		return noticeReply{Spans: spans}, err
	case indexNotice:
		return n.onIndexNotice(ctx, msg.Index)
	case useNotice:
		return n.onUseNotice(from, msg.Reference)
	case keepNotice:
		return n.onKeepNotice(msg.Reference, msg.Copies)
	case downNotice:
		return n.onDownNotice(from, msg.Registry)
	case upNotice:
		n.onUpNotice(msg.Registry)
		return noticeReply{}, nil
	case lookupNotice:
		return n.onLookupNotice(ctx, msg.Lookup)
	case tailNotice:
		return n.onTailNotice(ctx, msg.Tail)
	case blobNotice:
		return noticeReply{}, n.onBlobNotice(ctx, msg.Blob)
	case holdingNotice:
		return n.onHoldingNotice(msg.Image), nil
	}
	return noticeReply{}, fmt.Errorf("notice of unknown kind %.40q", msg.Kind)
}

// tellSeeds tells the seeds of the node's rack that it has mounted an image.
func (n *Node) tellSeeds(ctx context.Context, img *Image) {
	view := n.members.dht.View()
	for _, m := range view.Members() {
		if m.Role != dht.Seed || m.Rack != n.members.rack {
			continue
		}
		msg := notice{Kind: mountedNotice, Reference: img.byDigest()}
		var err error
		if m.ID == n.members.host.ID() {
			_, err = n.onNotice(ctx, m.ID, msg)
		} else {
			_, err = n.members.tell(ctx, &m, msg)
		}
		if err != nil && ctx.Err() == nil {
			n.log.Warn("seed could not be told of an image", "seed", m.Name, "reference", msg.Reference, "err", err)
		}
	}
}

// byDigest returns the reference that has the image's digest in place of a tag.
func (img *Image) byDigest() string { return img.Repository + "@" + string(img.Digest) }

// writeJSON and readJSON move one short JSON object.
func writeJSON(w io.Writer, v any) error {
	p, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(p)
	return err
}

func readJSON(r io.Reader, v any) error {
	p, err := io.ReadAll(io.LimitReader(r, maxNotice+1))
	if err != nil {
		return err
	}
	if len(p) > maxNotice {
		return fmt.Errorf("%w: message of more than %d bytes", chunk.ErrCorrupt, maxNotice)
	}
	dec := json.NewDecoder(bytes.NewReader(p))
	dec.DisallowUnknownFields()
	return dec.Decode(v)
}
