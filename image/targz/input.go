package targz

import (
	"crypto/sha256"
	"hash"
	"io"
)

// An intake hands on the encoded layer, hashes it and counts it.
type intake struct {
	r        io.Reader
	stopped  func() error // returns why to read no more
	progress func(int64)
	sum      hash.Hash
	n        int64
	err      error // of r, other than io.EOF, or of stopped
}

func newIntake(r io.Reader, stopped func() error, progress func(int64)) *intake {
	return &intake{r: r, stopped: stopped, progress: progress, sum: sha256.New()}
}

func (in *intake) Read(p []byte) (int, error) {
	if err := in.stopped(); err != nil {
		in.err = err
		return 0, err
	}
	n, err := in.r.Read(p)
	in.n += int64(n)
	in.sum.Write(p[:n])
	if in.progress != nil && n > 0 {
		in.progress(in.n)
	}
	if err != nil && err != io.EOF {
		in.err = err
	}
	return n, err
}
