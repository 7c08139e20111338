package registry

import (
	"errors"
	"fmt"
	"log/slog"
)

// MaxManifest is the size of the largest manifest that is taken, in bytes.
const MaxManifest = 8 << 20

// defaultMaxBlob is above any layer seen in practice and stops a runaway push
// before most disks are full.
const defaultMaxBlob = 64 << 30

// Config sets up a [Registry]. The zero value works.
type Config struct {
	MaxBlob int64 // size of the largest blob that is taken, in bytes; default 64 GiB

	// CertFile and KeyFile name a certificate chain and its key in PEM form.
	// With both, [Serve] speaks TLS; with neither, plain HTTP.
	CertFile string
	KeyFile  string

	Log   *slog.Logger // state changes and internal errors; default: discard
	Trace func(Event)  // called at the end of each request, on its goroutine; must not block
}

// withDefaults returns c with its zero values replaced, or what is wrong in it.
func (c Config) withDefaults() (Config, error) {
	if c.MaxBlob < 0 {
		return c, fmt.Errorf("largest blob of %d bytes is negative", c.MaxBlob)
	}
	if c.MaxBlob == 0 {
		c.MaxBlob = defaultMaxBlob
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		return c, errors.New("TLS needs both a certificate and a key file")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}
