package rafs

import (
	"bytes"
	"strings"
	"testing"

	"graze/chunk"
	"graze/image"
	"graze/image/fixture"
)

// TestRealBlobs opens real images and verifies all chunks of their blobs.
func TestRealBlobs(t *testing.T) {
	const texture = "nydus/tests/texture/"
	for boot, blob := range map[string]string{
		texture + "repeatable/sha256-nocompress-repeatable":    texture + "repeatable/blobs/7334a2594e133cf8ae364189c2276b090fc490c627bcc3fb1077f0419a538e00",
		texture + "repeatable/blake3-lz4_block-non_repeatable": texture + "repeatable/blobs/7334a2594e133cf8ae364189c2276b090fc490c627bcc3fb1077f0419a538e00",
		texture + "bootstrap/rafs-v6-2.2.boot":                 texture + "blobs/be7d77eeb719f70884758d1aa800ed0fb09d701aaec469964e9d54325f0d5fef",
		"extracted/v6-inline-from-2fa78cad.boot":               texture + "toc/2fa78cad554b75ac91a4a125ed148d0ddeb25efa4aaa8bd80e5dc292690a4dca",
	} {
		t.Run(boot[strings.LastIndex(boot, "/")+1:], func(t *testing.T) {
			verifyReal(t, fixture.Read(t, boot), fixture.Read(t, blob))
		})
	}
}

// verifyReal verifies all chunks of an image whose only blob is data, whatever
// the bootstrap calls it: that of a single layer can't know its name.
func verifyReal(t *testing.T, boot, data []byte) {
	t.Helper()
	cfg := blobs{}.config()
	cfg.Blob = func(chunk.Blob) image.Ranger { return ranger(data) }
	l, err := Open(t.Context(), boot, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Table.Blobs) != 1 || len(l.Table.Chunks) == 0 {
		t.Fatalf("%d blobs, %d chunks", len(l.Table.Blobs), len(l.Table.Chunks))
	}
	v := openView(t, l)
	decodeAll(t, v, blobs{l.Table.Blobs[0]: data})
}

// TestRealMeta compares what the bootstraps of real images say about their chunks
// with the chunk information in the blobs.
func TestRealMeta(t *testing.T) {
	const texture = "nydus/tests/texture/"
	for boot, blob := range map[string]string{
		texture + "bootstrap/rafs-v6-2.2.boot":   texture + "blobs/be7d77eeb719f70884758d1aa800ed0fb09d701aaec469964e9d54325f0d5fef",
		"extracted/v6-inline-from-2fa78cad.boot": texture + "toc/2fa78cad554b75ac91a4a125ed148d0ddeb25efa4aaa8bd80e5dc292690a4dca",
	} {
		b, err := Parse(fixture.Read(t, boot))
		if err != nil {
			t.Fatal(err)
		}
		data := ranger(fixture.Read(t, blob))
		one := &b.blobs[0]
		toc := map[string]tocEntry{}
		if one.tocDigest != [32]byte{} {
			if toc, err = readTOC(t.Context(), data, one); err != nil {
				t.Fatal(err)
			}
		}
		cfg := Config{Blob: func(chunk.Blob) image.Ranger { return data }}
		raw, header, err := readMeta(t.Context(), &cfg, one, "a", "a", toc)
		if err != nil {
			t.Fatal(err)
		}
		m, err := parseMeta(raw, header, one)
		if err != nil {
			t.Fatal(err)
		}
		for i := range one.chunkCount {
			info, err := m.info(i)
			if err != nil {
				t.Fatal(err)
			}
			row := b.tree.record(&fileChunk{index: i})
			if row == nil {
				t.Fatalf("%s: chunk %d has no record", boot, i)
			}
			r := decodeRecord(row)
			if info.usize != r.usize || info.csize != r.csize || info.coff != r.coff || (info.flags&infoCompressed != 0) != (r.flags&chunkCompressed != 0) {
				t.Errorf("%s: chunk %d: information %+v, record %+v", boot, i, info, r)
			}
		}
		if e, ok := toc[entryDigest]; ok {
			p, err := e.read(t.Context(), data)
			if err != nil {
				t.Fatal(err)
			}
			for i := range one.chunkCount {
				if digest := b.tree.record(&fileChunk{index: i})[:32]; !bytes.Equal(p[i*32:][:32], digest) {
					t.Errorf("%s: chunk %d has digests %x and %x", boot, i, p[i*32:][:32], digest)
				}
			}
		}
	}
}

// TestRealLZ4 verifies the chunks of a real blob of LZ4 blocks. No bootstrap of it
// is left, but that of the same chunks uncompressed: it is rewritten.
func TestRealLZ4(t *testing.T) {
	const texture = "nydus/tests/texture/repeatable/"
	data := fixture.Read(t, texture+"blobs/d7b86b1e74e316fe945741d1a9fa1b271459fe41481e304977659e0c6ecf56ac")
	raw := fixture.Read(t, texture+"blobs/7334a2594e133cf8ae364189c2276b090fc490c627bcc3fb1077f0419a538e00")
	boot := bytes.Clone(fixture.Read(t, texture+"sha256-nocompress-repeatable"))
	b, err := Parse(boot)
	if err != nil {
		t.Fatal(err)
	}
	// Each chunk of the raw blob, by its place there, as it stands in the other.
	type stretch struct {
		off, n     int
		compressed bool
	}
	where := make(map[uint64]stretch)
	err = b.walk(func(_ string, in *inode, _ string) error {
		for i := range in.chunks {
			r := decodeRecord(in.refs[i*chunkRecordSize:])
			where[r.coff] = stretch{n: int(r.usize)}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for at, off := 0, 0; at < len(raw); {
		s := where[uint64(at)]
		usize := s.n
		if s.off = off; !bytes.HasPrefix(data[off:], raw[at:at+usize]) {
			s.n, s.compressed = lz4Length(t, data[off:], usize), true
		}
		where[uint64(at)] = s
		at, off = at+usize, off+s.n
	}
	err = b.walk(func(_ string, in *inode, _ string) error {
		for i := range in.chunks {
			row := in.refs[i*chunkRecordSize:]
			s := where[le.Uint64(row[48:])]
			if s.compressed {
				le.PutUint32(row[36:], chunkCompressed)
			}
			le.PutUint32(row[40:], uint32(s.n))
			le.PutUint64(row[48:], uint64(s.off))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	le.PutUint64(boot[16:], le.Uint64(boot[16:])&^flagUncompressed|flagLZ4)
	verifyReal(t, boot, data)
}

// lz4Length returns how long the LZ4 block is that p begins with, which decodes to
// n bytes.
func lz4Length(t *testing.T, p []byte, n int) int {
	t.Helper()
	i := 0
	number := func(v int) int {
		if v == 15 {
			for p[i] == 255 {
				v, i = v+255, i+1
			}
			v, i = v+int(p[i]), i+1
		}
		return v
	}
	for out := 0; ; {
		token := p[i]
		i++
		literals := number(int(token >> 4))
		i, out = i+literals, out+literals
		if out >= n {
			return i
		}
		i += 2 // how far back the match is
		out += number(int(token&15)) + 4
	}
}

// realZRan is the chunk information of a real layer with contexts.
const realZRan = "nydus/tests/texture/zran/233c72f2b6b698c07021c4da367cfe2dff4f049efbaa885ca0ff760ea297865a.blob.meta"

// TestRealZRan parses the chunk information of a real layer that is read from
// contexts on. The layer itself is lost.
func TestRealZRan(t *testing.T) {
	p := fixture.Read(t, realZRan)
	header := p[len(p)-infoHeaderSize:]
	one := &blob{features: featureInfoV2 | featureZRan, chunkCount: 163}
	m, err := parseMeta(p[:660112], header, one)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.contexts) != 21*infoContextSize || len(m.dicts) != 20*image.MaxWindow {
		t.Errorf("%d bytes of contexts, %d of windows", len(m.contexts), len(m.dicts))
	}
	var end uint64
	for i := range one.chunkCount {
		info, err := m.info(i)
		if err != nil {
			t.Fatal(err)
		}
		place, err := fromZRan(m, &fileChunk{index: i, size: info.usize}, &info)
		if err != nil {
			t.Fatal(err)
		}
		if at := place.start + place.at; at < end {
			t.Errorf("chunk %d is at %d, after one that ends at %d", i, at, end)
		} else {
			end = at + uint64(info.usize)
		}
	}
	if last, err := m.zran(20); err != nil || end != last.outOff+uint64(last.outLen) {
		t.Errorf("chunks end at %d, the last context at %d+%d: %v", end, last.outOff, last.outLen, err)
	}
}
