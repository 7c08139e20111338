package peer

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"time"

	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
)

// newTLS returns the node's identity for TLS. Unless it is to age, its certificate says
// that it holds for ever: it proves who has a key and nothing about when. One that began
// to hold when it was made would be refused by all whose clock is behind that of the node.
func newTLS(id *Identity, aging bool) (*libp2ptls.Identity, error) {
	if aging {
		return libp2ptls.NewIdentity(id.key)
	}
	number, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, err
	}
	return libp2ptls.NewIdentity(id.key, libp2ptls.WithCertTemplate(&x509.Certificate{
		SerialNumber: number,
		Subject:      pkix.Name{SerialNumber: number.String()},
		NotBefore:    time.Unix(0, 0),
		NotAfter:     time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), // RFC 5280: never
	}))
}
