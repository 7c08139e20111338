package chunkstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// MinLimit is the smallest limit that a store takes, in bytes.
const MinLimit = 1 << 20

// Config says how a store behaves. The zero value is usable.
type Config struct {
	// Limit bounds the bytes of all the store's files together. 0 means 80 % of
	// the space that was free when the store was first opened so; the figure is
	// kept in the store.
	Limit int64

	// SyncEvery is how long what was put may stay in memory only, to be lost in
	// a power cut. Default 1s.
	SyncEvery time.Duration

	// KeepAll has the store make no room: what does not fit is not kept.
	KeepAll bool

	// Log takes what an operator should know: recovery, corruption, failing
	// writes. Default: discard.
	Log *slog.Logger
}

// withDefaults returns c with its zero fields filled in, except Limit.
func (c Config) withDefaults() (Config, error) {
	if c.Limit != 0 && c.Limit < MinLimit {
		return c, fmt.Errorf("limit of %d bytes is below the least possible, %d", c.Limit, int64(MinLimit))
	}
	if c.SyncEvery < 0 {
		return c, fmt.Errorf("sync interval %v is negative", c.SyncEvery)
	}
	if c.SyncEvery == 0 {
		c.SyncEvery = time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

const (
	minSegment = 16 << 20
	maxSegment = 256 << 20
	// topSegment keeps offsets in a segment within 32 bits, with room for the
	// record that crosses it.
	topSegment = 2 << 30
)

// segmentSize returns where a segment of a store with the given limit is full.
// Small stores get at least eight segments, large ones at most 1024, since each
// takes a descriptor.
func segmentSize(limit int64) int64 {
	size := min(max(limit/64, minSegment), maxSegment)
	size = max(size, limit/1024)
	size = min(size, limit/8)
	return min(size, topSegment)
}

const (
	metaName   = "store.json"
	metaFormat = "graze chunk store" // marks the file as ours

	tmpSuffix = ".tmp" // of a file until it replaces another
)

// meta is the content of store.json.
type meta struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	Limit   int64  `json:"limit,omitempty"` // found at the first start; 0 if a limit was always given
}

// loadMeta reads store.json in dir, or writes it, and returns the limit that
// holds: want, if it is not 0.
func loadMeta(dir string, want int64) (limit int64, err error) {
	path := filepath.Join(dir, metaName)
	m := meta{Format: metaFormat, Version: formatVersion}
	text, err := os.ReadFile(path)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return 0, err
	}
	if !missing {
		if err := json.Unmarshal(text, &m); err != nil {
			return 0, fmt.Errorf("%s is damaged: %w; remove it to have it made anew", path, err)
		}
		if m.Format != metaFormat {
			return 0, fmt.Errorf("%s is of a %.40q, not of a %s", path, m.Format, metaFormat)
		}
		if m.Version != formatVersion {
			return 0, versionError(path, uint32(m.Version))
		}
		if m.Limit != 0 && m.Limit < MinLimit {
			return 0, fmt.Errorf("%s has a limit of %d bytes; the least possible is %d", path, m.Limit, int64(MinLimit))
		}
	}
	limit = want
	if limit == 0 {
		if m.Limit == 0 {
			if m.Limit, err = freeShare(dir); err != nil {
				return 0, err
			}
			missing = true
		}
		limit = m.Limit
	}
	if missing {
		text, err := json.Marshal(m)
		if err != nil {
			return 0, err
		}
		if err := replaceFile(path, append(text, '\n')); err != nil {
			return 0, err
		}
	}
	return limit, nil
}

// freeShare returns 80 % of the bytes that the store in dir can have: those that
// are free and those it has already.
func freeShare(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	free := int64(st.Bavail) * st.Bsize
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			free += info.Size()
		}
	}
	share := free / 5 * 4
	if share < MinLimit {
		return 0, fmt.Errorf("only %d bytes are free in %s: make room or set a limit", free, dir)
	}
	return share, nil
}

// replaceFile puts a file in place as a whole: after a crash it is the old one
// or the new one.
func replaceFile(path string, text []byte) error {
	tmp := path + tmpSuffix
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		os.Remove(tmp) // best effort: the next open writes over it
		return err
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes the names in dir durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
