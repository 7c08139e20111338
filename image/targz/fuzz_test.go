package targz

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"sync"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"graze/chunk"
	"graze/image/fixture"
)

// FuzzBuild checks that what Build takes can be opened and decoded, and that all
// else is corrupt. A leading byte chooses how the input is compressed, so that
// the tar reader is reached.
func FuzzBuild(f *testing.F) {
	const asIs, asGzip = 0, 1
	for _, row := range archives {
		a := &archive{t: f}
		row.fill(a)
		if a.b.Len() < 64<<10 {
			f.Add(byte(asGzip), a.b.Bytes())
			f.Add(byte(asIs), a.b.Bytes())
			f.Add(byte(asIs), gz(f, 6, gzip.Header{Name: "n"}, a.b.Bytes()))
			f.Add(byte(asIs), frames(f, 2000, a.b.Bytes()))
		}
	}
	for _, name := range []string{"all-entry-type.tar", "all-entry-type-macos.tar"} {
		if p := fixture.Seed(f, "nydus/tests/texture/tar/"+name); p != nil {
			f.Add(byte(asIs), p)
			f.Add(byte(asGzip), p)
		}
	}
	f.Fuzz(func(t *testing.T, how byte, enc []byte) {
		if how == asGzip {
			enc = gz(t, 1, gzip.Header{}, enc)
		}
		var tree, checkpoints bytes.Buffer
		info, err := Build(context.Background(), bytes.NewReader(enc), &tree, &checkpoints, Config{ChunkSize: 1024, SpanSize: 2048})
		if err != nil {
			if !errors.Is(err, chunk.ErrCorrupt) {
				t.Errorf("error is %v", err)
			}
			return
		}
		l, err := Open(tree.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range l.Entries {
			if err != nil {
				t.Fatal(err)
			}
		}
		verifySpans(t, &built{info, tree.Bytes(), checkpoints.Bytes(), l}, enc)
	})
}

// reseal returns a tree with its summary replaced.
func reseal(tree, summary []byte) []byte {
	n := binary.LittleEndian.Uint32(tree[len(tree)-footerSize:])
	p := append(tree[:len(tree)-footerSize-int(n):len(tree)-footerSize-int(n)], summary...)
	p = binary.LittleEndian.AppendUint32(p, uint32(len(summary)))
	return binary.LittleEndian.AppendUint32(p, crc32.Checksum(summary, castagnoli))
}

// content returns the unpacked blocks of a tree, each with its kind and rows
// before it, and the summary.
func content(t testing.TB, tree []byte) (p, summary []byte) {
	t.Helper()
	_, blocks, err := split(tree)
	if err != nil {
		t.Fatal(err)
	}
	u, err := newUnpacker()
	if err != nil {
		t.Fatal(err)
	}
	rest := blocks
	for len(rest) > 0 {
		var b packedBlock
		if b, rest, err = nextBlock(rest, 0); err != nil {
			t.Fatal(err)
		}
		raw, err := u.dec.DecodeAll(b.packed, make([]byte, 0, b.size))
		if err != nil {
			t.Fatal(err)
		}
		p = append(p, b.kind)
		p = binary.LittleEndian.AppendUint16(p, uint16(b.rows))
		p = binary.LittleEndian.AppendUint32(p, uint32(len(raw)))
		p = append(p, raw...)
	}
	return p, tree[len(headMagic)+len(blocks) : len(tree)-footerSize]
}

// fastPacker returns an encoder that is only made once.
var fastPacker = sync.OnceValue(func() *zstd.Encoder {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		panic(err)
	}
	return enc
})

// assemble makes a tree of what content returned, or of what became of it.
func assemble(t testing.TB, p, summary []byte) []byte {
	t.Helper()
	enc := fastPacker()
	tree := []byte(headMagic)
	for len(p) >= 7 {
		kind, rows := p[0], uint32(binary.LittleEndian.Uint16(p[1:]))
		n := min(int(binary.LittleEndian.Uint32(p[3:])), len(p)-7)
		packed := enc.EncodeAll(p[7:7+n], nil)
		tree = append(tree, kind)
		tree = binary.LittleEndian.AppendUint32(tree, rows)
		tree = binary.LittleEndian.AppendUint32(tree, uint32(n))
		tree = binary.LittleEndian.AppendUint32(tree, uint32(len(packed)))
		tree = append(tree, packed...)
		p = p[7+n:]
	}
	return reseal(append(tree, make([]byte, footerSize)...), summary)
}

// FuzzOpen opens trees whose blocks are damaged before they are packed, so that
// the damage is not just found by checksums.
func FuzzOpen(f *testing.F) {
	for _, row := range archives {
		a := &archive{t: f}
		row.fill(a)
		if a.b.Len() < 64<<10 {
			x := build(f, gz(f, 6, gzip.Header{}, a.b.Bytes()), Config{ChunkSize: 512, SpanSize: 1})
			blocks, summary := content(f, x.tree)
			f.Add(blocks, summary)
		}
	}
	f.Fuzz(func(t *testing.T, blocks, summary []byte) {
		l, err := Open(assemble(t, blocks, summary))
		if err != nil {
			if !errors.Is(err, chunk.ErrCorrupt) {
				t.Errorf("error is %v", err)
			}
			return
		}
		for i := range l.Table.Spans {
			s := l.Table.Span(uint32(i))
			if s.Off < 0 || s.Len < 0 || s.Start < 0 || len(s.Parts) == 0 {
				t.Errorf("span %d is %+v", i, s)
			}
		}
		n := 0
		for e, err := range l.Entries {
			if err != nil {
				return
			}
			at := int64(0)
			for _, x := range e.Extents {
				if x.Off < at || x.Len <= 0 || x.Len > e.Size-x.Off || x.At < 0 ||
					int64(x.At)+x.Len > int64(l.Table.Chunks[x.Chunk].Size) {
					t.Fatalf("entry %d has extent %+v", n, x)
				}
				at = x.Off + x.Len
			}
			n++
		}
	})
}
