package node

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	libp2p "github.com/libp2p/go-libp2p/core/peer"

	"graze/chunk"
	"graze/dht"
	"graze/directory"
)

// Nodes tell each other which chunks they hold by messages on a libp2p stream: the
// number of the sender's start and keys of chunks, 8 bytes each. The answer is one
// byte.
const (
	holdsProtocol = "/graze/holds/1"
	holdsTaken    = 1
	keySize       = 8
	maxHolds      = keySize * (1 + directory.MaxKeys)
)

// keepersPerChunk is how many nodes keep what is known of a chunk. One may go.
const keepersPerChunk = 2

// A directoryCluster is the other members as the directory sees them.
type directoryCluster struct{ *members }

// View implements directory.Cluster.
func (c directoryCluster) View() directory.View { return directoryView{c.dht.View()} }

// A directoryView is a view of the members as the directory sees it.
type directoryView struct{ *dht.View }

// Keepers implements directory.View.
func (v directoryView) Keepers(dst []chunk.PeerID, key directory.Key) []chunk.PeerID {
	var room [keepersPerChunk]*dht.Member
	for _, m := range v.AppendClusterHomes(room[:0], dht.Key(key), keepersPerChunk) {
		dst = append(dst, m.ID)
	}
	return dst
}

// Members implements directory.View.
func (v directoryView) Members(dst []chunk.PeerID) []chunk.PeerID {
	for _, m := range v.View.Members() {
		dst = append(dst, m.ID)
	}
	return dst
}

// Tell implements directory.Cluster.
func (c directoryCluster) Tell(ctx context.Context, to chunk.PeerID, m directory.Message) error {
	id, err := libp2p.Decode(string(to))
	if err != nil {
		return err
	}
	s, err := c.host.P2P().NewStream(ctx, id, holdsProtocol)
	if err != nil {
		return err
	}
	defer s.Close()
	stop := context.AfterFunc(ctx, func() { s.Reset() })
	defer stop()
	if _, err := s.Write(encodeHolds(m)); err != nil {
		return err
	}
	if err := s.CloseWrite(); err != nil {
		return err
	}
	var answer [1]byte
	if _, err := io.ReadFull(s, answer[:]); err != nil {
		return err
	}
	if answer[0] != holdsTaken {
		return fmt.Errorf("%w: answer %d of node %s", chunk.ErrCorrupt, answer[0], to)
	}
	return nil
}

// serveHolds takes a message of another node.
func (n *Node) serveHolds(s network.Stream) {
	defer s.Close()
	m, err := readHolds(s)
	if err == nil {
		n.directory.Heard(chunk.PeerID(s.Conn().RemotePeer().String()), m)
		_, err = s.Write([]byte{holdsTaken})
	}
	if err != nil {
		s.Reset()
	}
}

// readHolds reads a message within a time.
func readHolds(s network.Stream) (m directory.Message, err error) {
	if err := s.SetDeadline(time.Now().Add(noticeTimeout)); err != nil {
		return m, err
	}
	p, err := io.ReadAll(io.LimitReader(s, maxHolds+1))
	if err != nil {
		return m, err
	}
	return parseHolds(p)
}

// encodeHolds encodes a message.
func encodeHolds(m directory.Message) []byte {
	p := binary.BigEndian.AppendUint64(make([]byte, 0, keySize*(1+len(m.Keys))), m.Start)
	for _, key := range m.Keys {
		p = binary.BigEndian.AppendUint64(p, uint64(key))
	}
	return p
}

// parseHolds decodes a message.
func parseHolds(p []byte) (m directory.Message, err error) {
	if len(p) < keySize || len(p) > maxHolds || len(p)%keySize != 0 {
		return m, fmt.Errorf("%w: message of %d bytes", chunk.ErrCorrupt, len(p))
	}
	m.Start = binary.BigEndian.Uint64(p)
	for p = p[keySize:]; len(p) > 0; p = p[keySize:] {
		m.Keys = append(m.Keys, directory.Key(binary.BigEndian.Uint64(p)))
	}
	return m, nil
}

// newDirectory makes the node's part of the directory.
func (n *Node) newDirectory() (*directory.Directory, error) {
	var cfg directory.Config
	if n.store != nil {
		cfg.Stored = n.store.IDs()
	}
	return directory.New(directoryCluster{n.members}, cfg)
}
