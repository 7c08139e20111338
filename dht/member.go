package dht

import (
	"fmt"
	"net"
	"strconv"
	"unicode"
	"unicode/utf8"

	"graze/chunk"
)

// Limits of what a member says of itself.
const (
	MaxMembers = 16384 // members that a node keeps; more are ignored and counted

	maxID   = 128
	maxText = 64 // name, rack, zone
	maxAddr = 96 // bulk address; one libp2p address, in its binary form
	maxP2P  = 4  // libp2p addresses
)

// DefaultWeight is the weight of an ordinary node, and SeedWeight that of a
// seed, unless the member's own is set.
const (
	DefaultWeight = 100
	SeedWeight    = 400
)

// A Role says what a member is for. The numbers are part of the gossip protocol.
type Role uint8

// The roles of members.
const (
	Node Role = iota // holds what it reads, and its share of homes
	Seed             // also holds whole images for its rack
)

// String returns the role's name.
func (r Role) String() string {
	switch r {
	case Node:
		return "node"
	case Seed:
		return "seed"
	}
	return fmt.Sprintf("role(%d)", uint8(r))
}

// A Member is a node of the cluster as it describes itself.
type Member struct {
	ID     chunk.PeerID // letters and digits; unique in the cluster
	Name   string       // for people: usually the host's name
	Gossip string       // host:port at which it gossips, as the others see it; set by the cluster
	Bulk   string       // host:port at which it serves chunks; may be empty
	P2P    []string     // libp2p multiaddrs, without the peer ID; those that don't fit into the metadata are dropped from the end
	Rack   string       // empty: none
	Zone   string
	Role   Role
	Weight uint16 // share of homes relative to the other members; 0 means the role's default
	Load   uint8  // 0 idle to 255 full
	Ready  bool   // false: leaving, or its disk fails; it is home only after all that are ready

	// Unconfirmed members come from the last view on disk; gossip has not
	// confirmed them since the node started.
	Unconfirmed bool
}

// effective returns the weight with which m takes part in the choice of homes
// among ready members.
func (m *Member) effective() uint16 {
	if !m.Ready {
		return 0
	}
	return m.Weight
}

// Check reports what is wrong with the names and the bulk address of m, which may
// be a stranger's words.
func (m *Member) Check() error {
	for _, text := range []struct{ what, s string }{{"name", m.Name}, {"rack", m.Rack}, {"zone", m.Zone}} {
		if err := checkText(text.what, text.s); err != nil {
			return err
		}
	}
	if m.Bulk == "" {
		return nil
	}
	return checkHostPort("bulk address", m.Bulk)
}

// checkID reports what is wrong with a peer ID.
func checkID(id string) error {
	if id == "" || len(id) > maxID {
		return fmt.Errorf("peer id has %d bytes, not 1 to %d", len(id), maxID)
	}
	for _, c := range []byte(id) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return fmt.Errorf("peer id %.40q has bytes that are not letters or digits", id)
		}
	}
	return nil
}

// checkText reports what is wrong with a name that people see.
func checkText(what, s string) error {
	if len(s) > maxText {
		return fmt.Errorf("%s has %d bytes, more than %d", what, len(s), maxText)
	}
	if !utf8.ValidString(s) {
		return fmt.Errorf("%s is not UTF-8", what)
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return fmt.Errorf("%s %.40q has characters that can't be printed", what, s)
		}
	}
	return nil
}

// checkHostPort reports what is wrong with an address to dial.
func checkHostPort(what, s string) error {
	if len(s) > maxAddr {
		return fmt.Errorf("%s has %d bytes, more than %d", what, len(s), maxAddr)
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%s has port %.20q, not a number from 1 to 65535", what, port)
	}
	if host == "" {
		return fmt.Errorf("%s has no host", what)
	}
	for _, r := range host {
		if r <= ' ' || r >= 0x7f {
			return fmt.Errorf("%s has a host that is not ASCII", what)
		}
	}
	return nil
}
