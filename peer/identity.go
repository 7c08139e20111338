package peer

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"

	"github.com/libp2p/go-libp2p/core/crypto"
	p2ppeer "github.com/libp2p/go-libp2p/core/peer"

	"graze/chunk"
)

// An Identity is a node's private key. Its public half is the node's name.
type Identity struct {
	key crypto.PrivKey
	id  p2ppeer.ID
}

// NewIdentity makes an identity.
func NewIdentity() (*Identity, error) {
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	if err != nil {
		return nil, err
	}
	return identityOf(key)
}

func identityOf(key crypto.PrivKey) (*Identity, error) {
	if key.Type() != crypto.Ed25519 {
		return nil, fmt.Errorf("a %s key, not ed25519", key.Type())
	}
	id, err := p2ppeer.IDFromPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return &Identity{key, id}, nil
}

// LoadIdentity reads the identity in the file path, or makes one and writes it
// there if there is no such file. It is a libp2p private key, which nobody but
// the owner of the file may read.
func LoadIdentity(path string) (*Identity, error) {
	id, err := readIdentity(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return id, err
	}
	if id, err = NewIdentity(); err != nil {
		return nil, err
	}
	b, err := crypto.MarshalPrivateKey(id.key)
	if err != nil {
		return nil, err
	}
	err = writeSecret(path, b)
	if errors.Is(err, fs.ErrExist) { // another process was faster
		return readIdentity(path)
	}
	if err != nil {
		return nil, fmt.Errorf("write identity: %w", err)
	}
	return id, nil
}

func readIdentity(path string) (*Identity, error) {
	b, err := readSecret(path)
	if err != nil {
		return nil, fmt.Errorf("read identity: %w", err)
	}
	key, err := crypto.UnmarshalPrivateKey(b)
	if err != nil {
		return nil, fmt.Errorf("identity in %s: %w", path, err)
	}
	id, err := identityOf(key)
	if err != nil {
		return nil, fmt.Errorf("identity in %s: %w", path, err)
	}
	return id, nil
}

// ID returns the name of the node.
func (id *Identity) ID() chunk.PeerID { return chunk.PeerID(id.id.String()) }
