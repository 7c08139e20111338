package dht

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hashicorp/memberlist"
	"github.com/multiformats/go-multiaddr"
)

// A member's metadata is the byte metadataVersion and then fields: a tag, a
// length, and so many bytes. Fields rise by tag; a field that stands for its
// default is left out; readers skip tags that they don't know, so that a newer
// node can say more. The peer ID is not among them: it is the member's name in
// gossip.
const metadataVersion = 1

const (
	tagName   = 1 // text
	tagRack   = 2 // text
	tagZone   = 3 // text
	tagBulk   = 4 // host:port
	tagRole   = 5 // one byte
	tagWeight = 6 // two bytes, big endian, not 0
	tagLoad   = 7 // one byte
	tagReady  = 8 // no bytes; its presence says ready
	tagP2P    = 9 // a multiaddr in binary form; may stand several times
)

// encodeMetadata returns m's metadata. Everything but the libp2p addresses
// always fits; of these, those that don't fit are dropped.
func encodeMetadata(m *Member) ([]byte, error) {
	for _, f := range []struct{ what, text string }{{"name", m.Name}, {"rack", m.Rack}, {"zone", m.Zone}} {
		if err := checkText(f.what, f.text); err != nil {
			return nil, err
		}
	}
	if m.Bulk != "" {
		if err := checkHostPort("bulk address", m.Bulk); err != nil {
			return nil, err
		}
	}
	if m.Role > Seed {
		return nil, fmt.Errorf("member has unknown %s", m.Role)
	}
	if m.Weight == 0 {
		return nil, errors.New("member has weight 0")
	}
	b := append(make([]byte, 0, memberlist.MetaMaxSize), metadataVersion)
	field := func(tag byte, p ...byte) { b = append(append(b, tag, byte(len(p))), p...) }
	text := func(tag byte, s string) {
		if s != "" {
			field(tag, []byte(s)...)
		}
	}
	text(tagName, m.Name)
	text(tagRack, m.Rack)
	text(tagZone, m.Zone)
	text(tagBulk, m.Bulk)
	if m.Role != Node {
		field(tagRole, byte(m.Role))
	}
	if m.Weight != DefaultWeight {
		field(tagWeight, binary.BigEndian.AppendUint16(nil, m.Weight)...)
	}
	if m.Load != 0 {
		field(tagLoad, m.Load)
	}
	if m.Ready {
		field(tagReady)
	}
	for i, s := range m.P2P {
		a, err := multiaddr.NewMultiaddr(s)
		if err != nil {
			return nil, fmt.Errorf("libp2p address: %w", err)
		}
		p := a.Bytes()
		if i == maxP2P || len(p) > maxAddr || len(b)+2+len(p) > memberlist.MetaMaxSize {
			break
		}
		field(tagP2P, p...)
	}
	return b, nil
}

// decodeMetadata reads what the member named from says of itself. It returns a
// member without ID and gossip address.
func decodeMetadata(from string, p []byte) (m Member, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("metadata of %.60q: %w", from, err)
		}
	}()
	if len(p) > memberlist.MetaMaxSize {
		return Member{}, fmt.Errorf("%d bytes, more than %d", len(p), memberlist.MetaMaxSize)
	}
	if len(p) == 0 || p[0] != metadataVersion {
		return Member{}, errors.New("not of a version that can be read here")
	}
	m.Weight = DefaultWeight
	var last byte
	for off := 1; off < len(p); {
		if len(p)-off < 2 || len(p)-off-2 < int(p[off+1]) {
			return Member{}, fmt.Errorf("field at byte %d is cut short", off)
		}
		tag, val := p[off], p[off+2:off+2+int(p[off+1])]
		if tag < last || tag == last && tag != tagP2P {
			return Member{}, fmt.Errorf("field %d at byte %d is out of order", tag, off)
		}
		if err := m.setField(tag, val); err != nil {
			return Member{}, fmt.Errorf("field %d at byte %d: %w", tag, off, err)
		}
		last = tag
		off += 2 + len(val)
	}
	return m, nil
}

// setField sets the field of m that tag names. It keeps nothing of val.
func (m *Member) setField(tag byte, val []byte) error {
	var err error
	switch tag {
	case tagName:
		m.Name = string(val)
		err = checkText("name", m.Name)
	case tagRack:
		m.Rack = string(val)
		err = checkText("rack", m.Rack)
	case tagZone:
		m.Zone = string(val)
		err = checkText("zone", m.Zone)
	case tagBulk:
		m.Bulk = string(val)
		err = checkHostPort("bulk address", m.Bulk)
	case tagRole:
		if len(val) != 1 || Role(val[0]) > Seed {
			return errors.New("unknown role")
		}
		m.Role = Role(val[0])
	case tagWeight:
		if len(val) != 2 || binary.BigEndian.Uint16(val) == 0 {
			return errors.New("not a weight")
		}
		m.Weight = binary.BigEndian.Uint16(val)
	case tagLoad:
		if len(val) != 1 {
			return errors.New("not a load")
		}
		m.Load = val[0]
	case tagReady:
		if len(val) != 0 {
			return errors.New("readiness has a value")
		}
		m.Ready = true
	case tagP2P:
		if len(m.P2P) == maxP2P || len(val) > maxAddr {
			return errors.New("too many or too long libp2p addresses")
		}
		a, err := multiaddr.NewMultiaddrBytes(append([]byte(nil), val...))
		if err != nil {
			return fmt.Errorf("libp2p address: %w", err)
		}
		m.P2P = append(m.P2P, a.String())
	}
	return err
}
