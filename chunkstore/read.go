package chunkstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"graze/chunk"
)

// ReadAt fills p with the bytes of chunk id from off on. The error wraps
// chunk.ErrNotFound if the chunk is not there, and chunk.ErrCorrupt if it had
// rotted: it is gone then, and should be fetched again. On any error the content
// of p is undefined.
func (s *Store) ReadAt(id chunk.ID, p []byte, off int64) error {
	g, l := s.find(id)
	if g == nil {
		return s.missing(id)
	}
	defer g.release() // closing a file that was only read loses nothing
	if off < 0 || off > int64(l.size) || int64(len(p)) > int64(l.size)-off {
		return &chunk.Error{Op: "read", What: id.String(), From: g.f.Name(),
			Err: fmt.Errorf("bytes %d to %d are not within its %d", off, off+int64(len(p)), l.size)}
	}
	if err := g.readChunk(id, l, p, off); err != nil {
		return s.drop(id, l, g, err)
	}
	g.touch(l.off)
	s.hits.Add(1)
	s.hitBytes.Add(int64(len(p)))
	return nil
}

// find returns where id lies, and its segment, which the caller releases. The
// segment is nil if there is no such chunk or the store is closed.
func (s *Store) find(id chunk.ID) (*segment, loc) {
	for !s.closed.Load() {
		l, ok := s.index.get(id)
		if !ok {
			break
		}
		// A segment that is gone was evicted after we looked: look again.
		if g := s.segment(l.seg); g != nil && g.acquire() {
			return g, l
		}
	}
	return nil, loc{}
}

// missing returns the error for a chunk that find has not found.
func (s *Store) missing(id chunk.ID) error {
	if s.closed.Load() {
		return errClosed
	}
	s.misses.Add(1)
	return &chunk.Error{Op: "read", What: id.String(), Err: chunk.ErrNotFound}
}

// drop forgets a chunk whose bytes turned out bad for the given cause, and
// returns the error for whoever wanted it.
func (s *Store) drop(id chunk.ID, l loc, g *segment, cause error) error {
	if s.index.remove(id, l) {
		s.corrupt.Add(1)
		s.used.Add(entrySize)
		s.dropMu.Lock()
		s.drops = append(s.drops, entry{kindDrop, id, l})
		s.dropMu.Unlock()
		s.log.Warn("dropped a corrupt chunk", "chunk", id, "path", g.f.Name(), "off", l.off, "err", cause)
	}
	return &chunk.Error{Op: "read", What: id.String(), From: g.f.Name(),
		Err: fmt.Errorf("%w: record at %d: %w", chunk.ErrCorrupt, l.off, cause)}
}

// scratch is what a read needs besides the caller's buffer.
type scratch struct {
	head [recordHeaderSize + tableMax]byte
	pre  [blockSize]byte // of the first block, what the caller did not ask for
	post [blockSize]byte // of the last block
	iovs [3][]byte
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

var (
	errBlock      = errors.New("checksum of a block is wrong")
	errOtherChunk = errors.New("record is of another chunk")
)

// readChunk fills p with bytes of the chunk at l from off on, which must lie
// within it, and checks them. Any error means that the record is not to be
// trusted.
func (g *segment) readChunk(id chunk.ID, l loc, p []byte, off int64) error {
	if len(p) == 0 {
		return nil
	}
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	defer clear(sc.iovs[:]) // p is the caller's

	end := off + int64(len(p))
	first, last := off/blockSize, (end-1)/blockSize
	head := sc.head[:recordHeaderSize+4*(last+1)]
	sc.iovs = [3][]byte{head}
	if err := preadFull(g.fd, sc.iovs[:1], int64(l.off)); err != nil {
		return err
	}
	ref, err := decodeRecordHeader(head)
	if err != nil {
		return err
	}
	if ref.ID != id || uint32(ref.Size) != l.size {
		return errOtherChunk
	}

	pre := sc.pre[:off-first*blockSize]
	post := sc.post[:min((last+1)*blockSize, int64(l.size))-end]
	sc.iovs = [3][]byte{pre, p, post}
	at := int64(l.off) + dataOffset(l.size)
	if err := preadFull(g.fd, sc.iovs[:], at+first*blockSize); err != nil {
		return err
	}
	return checkBlocks(head[recordHeaderSize+4*first:], pre, p, post)
}

// checkBlocks checks pre, p and post, which lie end to end from the start of a
// block on, against the table of the blocks' checksums. Both pre and post are
// shorter than a block.
func checkBlocks(table, pre, p, post []byte) error {
	sum := checksum(pre)
	room := blockSize - len(pre) // of the block that sum is of
	for {
		n := min(room, len(p))
		sum = crc32.Update(sum, castagnoli, p[:n])
		p = p[n:]
		if len(p) == 0 {
			sum = crc32.Update(sum, castagnoli, post)
		}
		if sum != binary.LittleEndian.Uint32(table) {
			return errBlock
		}
		if len(p) == 0 {
			return nil
		}
		table, sum, room = table[4:], 0, blockSize
	}
}

// preadFull fills all of iovs, which it uses up, from off on.
func preadFull(fd int, iovs [][]byte, off int64) error {
	for {
		for len(iovs) > 0 && len(iovs[0]) == 0 {
			iovs = iovs[1:]
		}
		if len(iovs) == 0 {
			return nil
		}
		n, err := unix.Preadv(fd, iovs, off)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("preadv", err)
		}
		if n == 0 {
			return io.ErrUnexpectedEOF
		}
		off += int64(n)
		for i := range iovs {
			k := min(n, len(iovs[i]))
			iovs[i] = iovs[i][k:]
			n -= k
		}
	}
}

// A Section is the bytes of one chunk within a file, for sendfile and splice.
// The bytes stay valid until Close, even if the chunk is evicted; so long they
// also take space, so it should be closed soon.
type Section struct {
	g   *segment
	off int64
	len int64

	once sync.Once
	err  error
}

// Section returns where the bytes of chunk id lie, after checking them. The
// errors are those of ReadAt.
func (s *Store) Section(id chunk.ID) (*Section, error) {
	g, l := s.find(id)
	if g == nil {
		return nil, s.missing(id)
	}
	buf := checkBuffers.Get().(*[]byte)
	defer checkBuffers.Put(buf)
	for off := int64(0); off < int64(l.size); off += int64(len(*buf)) {
		p := (*buf)[:min(int64(len(*buf)), int64(l.size)-off)]
		if err := g.readChunk(id, l, p, off); err != nil {
			defer g.release()
			return nil, s.drop(id, l, g, err)
		}
	}
	g.touch(l.off)
	s.hits.Add(1)
	s.hitBytes.Add(int64(l.size))
	return &Section{g: g, off: int64(l.off) + dataOffset(l.size), len: int64(l.size)}, nil
}

var checkBuffers = sync.Pool{New: func() any { b := make([]byte, 128<<10); return &b }}

// File returns the file that holds the chunk. It is shared: it must be neither
// closed nor written, and its file offset means nothing.
func (c *Section) File() *os.File { return c.g.f }

// Offset returns the position of the chunk's first byte in the file.
func (c *Section) Offset() int64 { return c.off }

// Len returns the chunk's size in bytes.
func (c *Section) Len() int64 { return c.len }

// Close lets go of the file. Closing again has no effect.
func (c *Section) Close() error {
	c.once.Do(func() { c.err = c.g.release() })
	return c.err
}
