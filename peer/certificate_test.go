package peer

import (
	"crypto/x509"
	"testing"
	"time"
)

// TestCertificateHasNoAge: nodes whose clocks differ by centuries accept each other.
func TestCertificateHasNoAge(t *testing.T) {
	id, err := NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	identity, err := newTLS(id, false)
	if err != nil {
		t.Fatal(err)
	}
	config, _ := identity.ConfigForPeer("")
	cert, err := x509.ParseCertificate(config.Certificates[0].Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	for _, year := range []int{1980, 2500} {
		now := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
		cert.UnhandledCriticalExtensions = nil // libp2p's own, as it does
		if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now}); err != nil {
			t.Errorf("in %d: %v", year, err)
		}
	}
}
