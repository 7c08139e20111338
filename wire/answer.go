package wire

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"graze/chunk"
)

// Limits of an answer.
const (
	MaxHolders = 8
	MaxReason  = 256 // bytes
	MaxWait    = time.Hour

	maxAddr = 261 // a DNS name of 253 bytes, brackets, a colon and a port
)

// All, as an answer's Part, stands for all wanted parts of the item that have
// no answer yet; as Item, for all of all items.
const All = -1

// A Status is the kind of an answer.
type Status uint8

// The statuses. All but End and Alive answer a part.
const (
	// Bytes: the chunk follows.
	Bytes Status = 1
	// Redirect: ask the Holders.
	Redirect Status = 2
	// Busy: ask again after Wait, or elsewhere.
	Busy Status = 3
	// Absent: the node does not have the chunk and will not fetch it.
	Absent Status = 4
	// Failed: the node tried and could not; Reason says why.
	Failed Status = 5
	// End: the request is done, each wanted part has been answered.
	End Status = 6
	// Alive: the node is at work. It is sent when nothing else is, so that the
	// client can tell a long wait from a dead node.
	Alive Status = 7
)

// String returns the status's name.
func (s Status) String() string {
	switch s {
	case Bytes:
		return "bytes"
	case Redirect:
		return "redirect"
	case Busy:
		return "busy"
	case Absent:
		return "absent"
	case Failed:
		return "failed"
	case End:
		return "end"
	case Alive:
		return "alive"
	}
	return fmt.Sprintf("status(%d)", uint8(s))
}

// A Holder is a node that is said to hold a chunk.
type Holder struct {
	ID   chunk.PeerID
	Addr string // host:port of its bulk listener
}

// An Answer says what becomes of one part, or of All.
type Answer struct {
	Item, Part int
	Status     Status
	Size       int32 // with Bytes: length of the body that follows
	Holders    []Holder
	Wait       time.Duration // sent as whole microseconds, rounded up
	Reason     string        // untrusted: quote it
}

// Check returns an error unless a can be sent. An Answer that was read has
// passed it.
func (a *Answer) Check() error {
	if a.Item < All || a.Item >= MaxItems || a.Part < All || a.Part >= MaxParts || a.Item == All && a.Part != All {
		return fmt.Errorf("item %d, part %d can't be", a.Item, a.Part)
	}
	if a.Wait < 0 || a.Wait > MaxWait {
		return fmt.Errorf("wait %v is not between 0 and %v", a.Wait, MaxWait)
	}
	if len(a.Reason) > MaxReason || !utf8.ValidString(a.Reason) {
		return fmt.Errorf("a reason of %d bytes, or not UTF-8", len(a.Reason))
	}
	if len(a.Holders) > MaxHolders {
		return fmt.Errorf("%d holders, the limit is %d", len(a.Holders), MaxHolders)
	}
	for _, h := range a.Holders {
		if err := h.check(); err != nil {
			return err
		}
	}
	return a.checkStatus()
}

func (a *Answer) checkStatus() error {
	switch a.Status {
	case Bytes:
		if a.Item == All || a.Part == All {
			return fmt.Errorf("bytes for no one part")
		}
		if a.Size <= 0 || a.Size > chunk.MaxSize {
			return fmt.Errorf("body of %d bytes, not 1 to %d", a.Size, chunk.MaxSize)
		}
		return nil
	case Redirect:
		if len(a.Holders) == 0 {
			return fmt.Errorf("redirect to nobody")
		}
	case Busy, Absent, Failed:
	case End, Alive:
		if a.Item != All {
			return fmt.Errorf("%s of item %d", a.Status, a.Item)
		}
		if a.Reason != "" || a.Wait != 0 || len(a.Holders) > 0 {
			return fmt.Errorf("%s with something to say", a.Status)
		}
	default:
		return fmt.Errorf("unknown %s", a.Status)
	}
	if a.Size != 0 {
		return fmt.Errorf("%s with a body of %d bytes", a.Status, a.Size)
	}
	return nil
}

func (h Holder) check() error {
	if err := checkPeerID(h.ID); err != nil {
		return err
	}
	bad := func(r rune) bool { return notAlphanumeric(r) && !strings.ContainsRune(".-_", r) }
	i := strings.LastIndexByte(h.Addr, ':')
	if i <= 0 || len(h.Addr) > maxAddr {
		return fmt.Errorf("%.80q is no address of a node", h.Addr)
	}
	host, port := h.Addr[:i], h.Addr[i+1:]
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%.80q has no port", h.Addr)
	}
	if _, err := netip.ParseAddrPort(h.Addr); err != nil && strings.IndexFunc(host, bad) >= 0 {
		return fmt.Errorf("%.80q is no address of a node", h.Addr)
	}
	return nil
}

// CutReason returns s as an answer can carry it: valid UTF-8 of at most
// [MaxReason] bytes.
func CutReason(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= MaxReason {
		return s
	}
	n := MaxReason
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
