package toc

import (
	"fmt"
	"io"
	"math"

	"graze/chunk"
)

// A Config says what Read needs to know about the layer.
type Config struct {
	// Blob is the digest of the layer as the manifest names it. Required.
	Blob chunk.Blob

	// Codec is that of the members: chunk.Gzip, which is the default, or chunk.Zstd.
	Codec chunk.Codec

	// End is where the members end in the layer, in bytes. Required.
	End int64

	// Archive is set if the table has an entry for each one of the archive: several
	// may have the same name, of which the last one counts, and none has a special
	// meaning.
	Archive bool
}

// Read reads a table of contents from r to its end. An error is about what the
// table says, or that of r: the caller knows which.
func Read(r io.Reader, cfg Config) (*Index, error) {
	if cfg.Codec == 0 {
		cfg.Codec = chunk.Gzip
	}
	if cfg.Blob == "" || cfg.End < 0 || cfg.End > math.MaxInt64/2 || cfg.Codec != chunk.Gzip && cfg.Codec != chunk.Zstd {
		return nil, fmt.Errorf("table of contents of blob %q, %s, up to %d", cfg.Blob, cfg.Codec, cfg.End)
	}
	b := newBuilder(cfg)
	if err := decode(r, b); err != nil {
		return nil, err
	}
	return b.finish()
}
