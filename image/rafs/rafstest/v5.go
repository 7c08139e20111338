package rafstest

import (
	"crypto/sha256"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"
)

// A row5 is a row of the table of inodes of version 5: a name of a file.
type row5 struct {
	name   string
	node   *Node
	parent int // inode number
	ino    int
	first  int // row of the first child, from 1 on
}

// rows5 lists the tree: the root, and then the children of each directory
// together.
func (b *builder) rows5() []row5 {
	rows := []row5{{name: "/", node: b.root}}
	inos := make(map[*Node]int)
	for i := 0; i < len(rows); i++ {
		r := &rows[i]
		n := r.node
		if inos[n] == 0 {
			inos[n] = i + 1
		}
		r.ino = inos[n]
		if !n.is(unix.S_IFDIR) {
			continue
		}
		r.first = len(rows) + 1
		ino := r.ino
		for _, e := range n.Entries {
			rows = append(rows, row5{name: e.Name, node: e.Node, parent: ino})
		}
	}
	return rows
}

// bootstrap5 encodes the tree in version 5.
func (b *builder) bootstrap5() ([]byte, error) {
	rows := b.rows5()
	p := make([]byte, 8192)
	le.PutUint32(p, 0x52414653)
	le.PutUint32(p[4:], 0x500)
	le.PutUint32(p[8:], 8192)
	le.PutUint32(p[12:], uint32(b.ChunkSize))
	le.PutUint64(p[16:], b.flags()&^0x0300_0000)
	le.PutUint64(p[24:], uint64(b.inodes))
	le.PutUint64(p[32:], uint64(len(p)))
	le.PutUint32(p[56:], uint32(len(rows)))
	table := len(p)
	p = pad(append(p, make([]byte, 4*len(rows))...), 8)

	le.PutUint64(p[40:], uint64(len(p)))
	le.PutUint32(p[60:], uint32(len(b.Prefetch)))
	for _, path := range b.Prefetch {
		n, err := b.root.find(path)
		if err != nil {
			return nil, err
		}
		for i := range rows {
			if rows[i].node == n {
				p = le.AppendUint32(p, uint32(rows[i].ino))
				break
			}
		}
	}
	p = b.blobs5(pad(p, 8))
	for i := range rows {
		le.PutUint32(p[table+4*i:], uint32(len(p)/8))
		p = b.appendInode5(p, &rows[i])
	}
	return p, nil
}

// blobs5 appends the tables of blobs.
func (b *builder) blobs5(p []byte) []byte {
	start := len(p)
	for i, o := range b.blobs {
		if i > 0 {
			p = append(p, 0)
		}
		p = append(append(p, make([]byte, 8)...), o.id...)
	}
	p = pad(p, 8)
	le.PutUint64(p[48:], uint64(start))
	le.PutUint32(p[64:], uint32(len(p)-start))
	le.PutUint32(p[68:], uint32(len(b.blobs)))
	le.PutUint64(p[72:], uint64(len(p)))
	for _, o := range b.blobs {
		row := make([]byte, 64)
		le.PutUint32(row, uint32(len(o.pieces)))
		le.PutUint64(row[8:], uint64(o.usize))
		le.PutUint64(row[16:], uint64(len(o.data)))
		p = append(p, row...)
	}
	return p
}

// appendInode5 appends an inode with all that follows it.
func (b *builder) appendInode5(p []byte, r *row5) []byte {
	n := r.node
	h := make([]byte, 128)
	digest := b.digest5(n)
	copy(h, digest[:])
	le.PutUint64(h[32:], uint64(r.parent))
	le.PutUint64(h[40:], uint64(r.ino))
	le.PutUint32(h[48:], n.UID)
	le.PutUint32(h[52:], n.GID)
	le.PutUint32(h[60:], n.Mode)
	le.PutUint64(h[64:], uint64(len(n.Data)+len(n.Target)))
	le.PutUint32(h[88:], uint32(n.nlink))
	le.PutUint32(h[92:], uint32(r.first))
	le.PutUint32(h[96:], uint32(max(len(n.chunks), len(n.Entries))))
	le.PutUint16(h[100:], uint16(len(r.name)))
	le.PutUint16(h[102:], uint16(len(n.Target)))
	le.PutUint32(h[104:], n.Rdev)
	le.PutUint32(h[108:], n.Nsec)
	le.PutUint64(h[112:], uint64(n.Sec))
	flags := uint64(0)
	if n.Target != "" {
		flags |= 1
	}
	if n.nlink > 1 && !n.is(unix.S_IFDIR) {
		flags |= 2
	}
	var attrs []byte
	for _, x := range n.Xattrs {
		attrs = le.AppendUint32(attrs, uint32(len(x.Name)+1+len(x.Value)))
		attrs = append(append(append(attrs, x.Name...), 0), x.Value...)
	}
	if attrs != nil {
		flags |= 4
	}
	le.PutUint64(h[80:], flags)
	p = pad(append(append(p, h...), r.name...), 8)
	p = pad(append(p, n.Target...), 8)
	if attrs != nil {
		p = pad(append(le.AppendUint64(p, uint64(len(attrs))), attrs...), 8)
	}
	for i, c := range n.chunks {
		p = appendChunk(p, c, int64(i)*int64(b.ChunkSize))
	}
	return p
}

// digest5 returns the digest of an inode, which is that of the digests below it.
func (b *builder) digest5(n *Node) [32]byte {
	all := []byte(n.Target)
	for _, c := range n.chunks {
		all = append(all, c.digest[:]...)
	}
	for _, e := range n.Entries {
		d := b.digest5(e.Node)
		all = append(all, d[:]...)
	}
	if b.BLAKE3 {
		return blake3.Sum256(all)
	}
	return sha256.Sum256(all)
}

// appendChunk appends the row of 80 bytes that says all about a chunk.
func appendChunk(p []byte, c *piece, off int64) []byte {
	h := make([]byte, 80)
	copy(h, c.digest[:])
	le.PutUint32(h[32:], uint32(c.blob))
	flags := uint32(0)
	if c.compressed {
		flags |= 1
	}
	if c.context >= 0 {
		flags |= 8
	}
	le.PutUint32(h[36:], flags)
	le.PutUint32(h[40:], uint32(c.csize))
	le.PutUint32(h[44:], uint32(c.usize))
	le.PutUint64(h[48:], uint64(c.coff))
	le.PutUint64(h[56:], uint64(c.uoff))
	le.PutUint64(h[64:], uint64(off))
	le.PutUint32(h[72:], uint32(c.index))
	return append(p, h...)
}
