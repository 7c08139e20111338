package rafstest

import (
	"crypto/sha256"
	"fmt"
)

// The features of a blob.
const (
	featureAligned   = 0x1
	featureInfoV2    = 0x4
	featureZRan      = 0x8
	featureSeparate  = 0x10
	featureDigests   = 0x20
	featureTarfs     = 0x40
	featureBatch     = 0x80
	featureTarHeader = 0x1000_0000
	featureTOC       = 0x2000_0000
	featureTarTOC    = 0x4000_0000
)

// block is what chunks are aligned to in the unpacked blob.
const block = 4096

// A blob is one that is being made.
type blob struct {
	b      *builder
	id     string // hexadecimal digits
	data   []byte
	usize  int64 // of the unpacked blob
	pieces []*piece
	layer  *Layer
	files  map[[32]byte]int64 // of a layer: where a file's bytes begin in the archive
	taken  map[int64]*piece   // of a layer: chunks by their place in the archive

	progress []progress // of a layer that is decoded

	batch   []*piece // not yet encoded
	batches [][2]int // encoded and decoded sizes
	zran    []zranContext

	features                     uint32
	infoOff, infoCSize, infoSize int64
	tocDigest, metaDigest        [32]byte
	tocSize, metaSize            int64
}

// add puts a chunk into a blob.
func (o *blob) add(data []byte) (*piece, error) {
	p := &piece{
		digest: o.b.sum(data), index: len(o.pieces), data: data, usize: len(data), context: -1,
		uoff: o.usize,
	}
	o.usize += int64(len(data)+block-1) &^ (block - 1)
	o.pieces = append(o.pieces, p)
	if o.b.Batch > len(data) {
		if size := o.batchSize(); size+len(data) > o.b.Batch {
			o.flushBatch()
		}
		p.context, p.at = len(o.batches), o.batchSize()
		o.batch = append(o.batch, p)
		return p, nil
	}
	enc, compressed, err := o.b.encode(o.b.Compressor, data)
	if err != nil {
		return nil, err
	}
	p.coff, p.csize, p.compressed = int64(len(o.data)), len(enc), compressed
	o.data = append(o.data, enc...)
	return p, nil
}

func (o *blob) batchSize() (n int) {
	for _, p := range o.batch {
		n += p.usize
	}
	return n
}

// flushBatch encodes the chunks that wait for it.
func (o *blob) flushBatch() {
	if len(o.batch) == 0 {
		return
	}
	var all []byte
	for _, p := range o.batch {
		all = append(all, p.data...)
		p.coff, p.compressed = int64(len(o.data)), true
	}
	enc, _, err := o.b.encode(o.b.Compressor, all)
	if err != nil {
		enc = all // which is as good
	}
	o.batches = append(o.batches, [2]int{len(enc), len(all)})
	o.data = append(o.data, enc...)
	o.batch = nil
}

// finish makes the blob's file, and adds it to the image.
func (o *blob) finish(img *Image) error {
	if o.layer != nil && o.layer.Kind == Tarfs {
		o.id, o.features = hexSum(o.layer.Blob), featureTarfs
		img.References = append(img.References, "sha256:"+o.id)
		return nil
	}
	if o.b.Version == 5 {
		return o.finish5(img)
	}
	o.features |= featureAligned
	if o.b.InfoV2 || len(o.batches) > 0 || len(o.zran) > 0 {
		o.features |= featureInfoV2
	}
	if len(o.batches) > 0 {
		o.features |= featureBatch
	}
	raw, header := o.info()
	enc, _, err := o.b.encode(o.b.InfoCompressor, raw)
	if err != nil {
		return err
	}
	compressor := o.b.InfoCompressor
	if len(enc) == len(raw) {
		compressor = None
	}
	file := o.data
	if o.b.TOC {
		o.features |= featureTarHeader | featureTOC | featureTarTOC
		if o.layer == nil {
			file = append(file, tarHeader("image.blob", len(file))...)
		}
	}
	o.infoOff, o.infoCSize, o.infoSize = int64(len(file)), int64(len(enc)), int64(len(raw))
	o.fillHeader(header, compressor)
	file = append(append(file, enc...), header...)
	if o.b.TOC {
		file = o.appendTOC(file, raw, enc, header, compressor)
	}
	digest := "sha256:" + hexSum(file)
	o.id = hexSum(file)
	one := Blob{Digest: digest, Data: file}
	if o.layer != nil {
		o.features |= featureSeparate
		o.metaDigest, o.metaSize = sha256.Sum256(file), int64(len(file))
		o.id = hexSum(o.layer.Blob)
		one.Reference = "sha256:" + o.id
		img.References = append(img.References, one.Reference)
	}
	if o.b.MetaBeside {
		img.Metas[o.id] = append(pad(append([]byte(nil), raw...), block), header...)
	}
	img.Blobs = append(img.Blobs, one)
	return nil
}

// finish5 makes a blob of version 5, which is its chunks and nothing else.
func (o *blob) finish5(img *Image) error {
	if o.layer != nil || o.batches != nil {
		return fmt.Errorf("version 5 has neither batches nor layers")
	}
	o.id = hexSum(o.data)
	img.Blobs = append(img.Blobs, Blob{Digest: "sha256:" + o.id, Data: o.data})
	return nil
}

// appendTOC appends the rest of a blob that is an archive: what ends the chunk
// information, the digests, and the table of contents.
func (o *blob) appendTOC(file, raw, enc, header []byte, compressor Compressor) []byte {
	toc := tocEntry("blob.meta", compressor, raw, o.infoOff, len(enc))
	toc = append(toc, tocEntry("blob.meta.header", None, header, o.infoOff+int64(len(enc)), len(header))...)
	file = append(file, tarHeader("blob.meta", len(enc)+len(header))...)
	if o.b.InlineDigests {
		o.features |= featureDigests
		var digests []byte
		for _, p := range o.pieces {
			digests = append(digests, p.digest[:]...)
		}
		toc = append(toc, tocEntry("blob.digest", None, digests, int64(len(file)), len(digests))...)
		file = append(append(file, digests...), tarHeader("blob.digest", len(digests))...)
	}
	toc = append(toc, tarHeader("rafs.blob.toc", len(toc))...)
	o.tocDigest, o.tocSize = sha256.Sum256(toc), int64(len(toc))
	return append(file, toc...)
}

// tocEntry returns a row of a table of contents.
func tocEntry(name string, c Compressor, plain []byte, off int64, csize int) []byte {
	p := make([]byte, 128)
	flags := map[Compressor]uint32{None: 1, Zstd: 2, LZ4: 4}[c]
	le.PutUint32(p, flags)
	copy(p[8:24], name)
	sum := sha256.Sum256(plain)
	copy(p[24:], sum[:])
	le.PutUint64(p[56:], uint64(off))
	le.PutUint64(p[64:], uint64(csize))
	le.PutUint64(p[72:], uint64(len(plain)))
	return p
}

// tarHeader returns the header that stands behind a member of a blob.
func tarHeader(name string, size int) []byte {
	p := make([]byte, 512)
	copy(p, name)
	copy(p[124:], fmt.Sprintf("%011o\x00", size))
	copy(p[257:], "ustar  \x00")
	sum := 8 * int(' ')
	for _, c := range p {
		sum += int(c)
	}
	copy(p[148:], fmt.Sprintf("%06o\x00 ", sum))
	return p
}
