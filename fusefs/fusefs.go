package fusefs

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"graze/image"
)

// A Tree is the tree of files of an image, usually an *image.View. Inode 1 is
// its root. It never changes, and its methods may be called concurrently. For
// an inode number that it does not have, they report false or yield nothing.
type Tree interface {
	Attr(ino uint64) (image.Attr, bool)
	Lookup(dir uint64, name string) (ino uint64, ok bool)
	// ReadDir yields the entries of dir but . and .. with their positions,
	// rising, from position from on.
	ReadDir(dir uint64, from int) iter.Seq2[int, image.Dirent]
	Parent(dir uint64) uint64
	Readlink(ino uint64) (string, bool)
	Xattr(ino uint64, name string) ([]byte, bool)
	Xattrs(ino uint64) iter.Seq2[string, []byte]
	Totals() image.Totals
}

// Files gives the bytes of a tree's regular files.
type Files interface {
	// ReadAt fills p with the bytes of the file from off on. The server never
	// asks for bytes beyond the size that the tree gives. It may be called
	// concurrently, must return soon after ctx is done, and must not keep p.
	ReadAt(ctx context.Context, ino uint64, p []byte, off int64) (int, error)
}

// A Config is how a tree is mounted. The zero value is good.
type Config struct {
	// Source is what the mount table shows as the mount's source, in its first
	// column; "graze" if empty.
	Source string

	// ReadAhead is how many bytes the kernel reads ahead of a sequential
	// reader; 1 MiB if 0. Requests are as large as this, up to 1 MiB.
	ReadAhead int64

	// MaxBackground is how many reads the kernel may have under way at a time
	// that no process waits for by itself, read-ahead above all; 64 if 0.
	MaxBackground int

	// Trace is told what happens.
	Trace Trace
}

// defaultReadAhead is the default of Config.ReadAhead, and maxRequest the
// kernel's limit for one READ, in bytes.
const (
	defaultReadAhead     = 1 << 20
	defaultMaxBackground = 64
	maxRequest           = 1 << 20
	maxWrite             = 4096 // the least that there is: nothing is written
)

// withDefaults returns c with its defaults filled in, or what is wrong with it.
func (c Config) withDefaults() (Config, error) {
	if c.Source == "" {
		c.Source = "graze"
	}
	if strings.IndexByte(c.Source, 0) >= 0 {
		return c, errors.New("mount source has a NUL byte in it")
	}
	if c.ReadAhead == 0 {
		c.ReadAhead = defaultReadAhead
	}
	if c.ReadAhead < 0 || c.ReadAhead > 1<<30 {
		return c, fmt.Errorf("read-ahead of %d bytes is not between 0 and 1 GiB", c.ReadAhead)
	}
	if c.MaxBackground == 0 {
		c.MaxBackground = defaultMaxBackground
	}
	if c.MaxBackground < 0 || c.MaxBackground > 1<<16-1 {
		return c, fmt.Errorf("%d background requests are not between 0 and 65535", c.MaxBackground)
	}
	return c, nil
}

// A Trace has hooks that may be nil. They are called from the paths that they
// report on, must not block, and must be safe for concurrent use.
type Trace struct {
	// Failed is told of reads that failed: of each distinct error once a
	// minute, and of no more than 32 errors a minute.
	Failed func(Failure)

	// Warned is told, in a sentence, what the mount has to do without, what was
	// found at its place, and what went wrong when it was taken away.
	Warned func(msg string)
}

// A Failure is a read that the kernel was answered with an error.
type Failure struct {
	Ino uint64
	Off int64 // of the first byte
	Len int   // in bytes
	Err error

	// Skipped is how many failed reads were not reported since the last
	// Failure, because their error had been reported or the limit was reached.
	Skipped int64
}

// warn formats a message for t.Warned.
func (t *Trace) warn(format string, args ...any) {
	if t.Warned != nil {
		t.Warned(fmt.Sprintf(format, args...))
	}
}
