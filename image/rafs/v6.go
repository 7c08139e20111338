package rafs

import (
	"bytes"
	"fmt"

	"graze/chunk"
)

// The superblocks and tables of version 6.
const (
	magic6   = 0xe0f5e1e2
	sb6Off   = 1024
	ext6Off  = 1152
	ext6Size = 256

	compatRAFS    = 0x4000_0000
	incompatRAFS  = 0x4 | 0x8 // files of chunks, table of devices
	blockBits     = 12
	blockBitsTar  = 9
	slots6        = 11 // the table of devices begins after so many slots
	device6Size   = 128
	blob6Size     = 256
	blobIDSize    = 64
	maxBlobs6     = 254
	dirent6Size   = 12
	chunkRef6Size = 8
)

// A tree6 is the tree of a bootstrap of version 6. Numbers of inodes are places
// in slots of 32 bytes. Their owners are those that stand there, as the kernel's
// EROFS has it, whether the flags say that they are meant or not: builders that
// don't know them leave root there, and old ones forgot the flag.
type tree6 struct {
	p         []byte
	meta      uint64 // where the slots begin
	bits      uint8  // of a block's size
	rootNum   uint64
	chunkSize uint32
	blobs     uint32
	records   []byte            // of chunks
	numbers   map[uint64]uint32 // of records, by blob<<32 | index
}

func parse6(p []byte) (*Bootstrap, error) {
	sb, ext := p[sb6Off:], p[ext6Off:]
	compat, incompat := le.Uint32(sb[8:]), le.Uint32(sb[80:])
	bits := sb[12]
	switch {
	case compat&compatRAFS == 0 || incompat != incompatRAFS:
		return nil, fmt.Errorf("%w: EROFS with features %#x and %#x", ErrNotRAFS, compat, incompat)
	case bits != blockBits && bits != blockBitsTar, sb[13] != 0, le.Uint32(sb[4:]) != 0, le.Uint16(sb[84:]) != 0:
		return nil, fmt.Errorf("%w: superblock has 2^%d bytes a block, %d extra slots or a checksum", chunk.ErrCorrupt, bits, sb[13])
	case len(p)%(1<<bits) != 0:
		return nil, fmt.Errorf("%w: bootstrap of %d bytes is not whole blocks", chunk.ErrCorrupt, len(p))
	}
	b := &Bootstrap{version: 6, maxNames: len(p) / dirent6Size, maxChunks: len(p) / chunkRef6Size}
	if err := b.setChunkSize(le.Uint32(ext[20:])); err != nil {
		return nil, err
	}
	flags := le.Uint64(ext)
	if err := b.setFlags(flags); err != nil {
		return nil, err
	}
	if flags&flagsCompressor == 0 || flags&flagsDigest == 0 {
		return nil, fmt.Errorf("%w: flags %#x name no compressor or no digest", chunk.ErrCorrupt, flags)
	}
	t := &tree6{
		p:         p,
		meta:      uint64(le.Uint32(sb[40:])) << bits,
		bits:      bits,
		rootNum:   uint64(le.Uint16(sb[14:])),
		chunkSize: b.chunkSize,
	}
	b.tree = t
	if err := b.blobs6(p, sb, ext); err != nil {
		return nil, err
	}
	t.blobs = uint32(len(b.blobs))
	if (flags&flagTarfs != 0) != (bits == blockBitsTar) {
		return nil, fmt.Errorf("%w: flags %#x with 2^%d bytes a block", chunk.ErrCorrupt, flags, bits)
	}
	if err := t.readRecords(p, ext); err != nil {
		return nil, err
	}
	return b, b.prefetch6(p, ext)
}

// readRecords finds the table of chunks.
func (t *tree6) readRecords(p, ext []byte) (err error) {
	n := le.Uint64(ext[32:])
	if t.records, err = cut(p, le.Uint64(ext[24:]), n); err != nil {
		return fmt.Errorf("table of chunks: %w", err)
	}
	if n%chunkRecordSize != 0 {
		return fmt.Errorf("%w: table of chunks has %d bytes", chunk.ErrCorrupt, n)
	}
	t.numbers = make(map[uint64]uint32, n/chunkRecordSize)
	for i := range uint32(n / chunkRecordSize) {
		row := t.records[i*chunkRecordSize:]
		t.numbers[chunkKey(le.Uint32(row[32:]), le.Uint32(row[72:]))] = i
	}
	return nil
}

// chunkKey names a chunk by its blob and its index there.
func chunkKey(blob, index uint32) uint64 { return uint64(blob)<<32 | uint64(index) }

func (t *tree6) record(c *fileChunk) []byte {
	n, ok := t.numbers[chunkKey(c.blob, c.index)]
	if !ok {
		return nil
	}
	return t.records[int(n)*chunkRecordSize:][:chunkRecordSize]
}

// prefetch6 reads the inodes that are wanted at the start. Old images may have a
// size without a place.
func (b *Bootstrap) prefetch6(p, ext []byte) error {
	off, n := le.Uint64(ext[40:]), le.Uint32(ext[48:])
	if off == 0 {
		return nil
	}
	rows, err := cut(p, off, uint64(n))
	if err != nil {
		return fmt.Errorf("table of prefetched inodes: %w", err)
	}
	for ; len(rows) >= 4; rows = rows[4:] {
		b.prefetch = append(b.prefetch, uint64(le.Uint32(rows)))
	}
	return nil
}

// blobs6 reads the table of blobs, and compares it with that of devices.
func (b *Bootstrap) blobs6(p, sb, ext []byte) error {
	table, err := cut(p, le.Uint64(ext[8:]), uint64(le.Uint32(ext[16:])))
	if err != nil {
		return fmt.Errorf("table of blobs: %w", err)
	}
	devices := int(le.Uint16(sb[86:]))
	if len(table)%blob6Size != 0 || len(table)/blob6Size != devices || devices > maxBlobs6 {
		return fmt.Errorf("%w: table of blobs has %d bytes for %d devices", chunk.ErrCorrupt, len(table), devices)
	}
	slots, err := cut(p, slots6*device6Size, uint64(devices)*device6Size)
	if devices > 0 && (err != nil || le.Uint16(sb[88:]) != slots6) {
		return fmt.Errorf("%w: table of devices at slot %d", chunk.ErrCorrupt, le.Uint16(sb[88:]))
	}
	for i := range devices {
		row := table[i*blob6Size:][:blob6Size]
		if !bytes.Equal(row[:blobIDSize], slots[i*device6Size:][:blobIDSize]) || le.Uint32(row[64:]) != uint32(i) {
			return fmt.Errorf("%w: row %d of the table of blobs is not that of device %d", chunk.ErrCorrupt, i, i)
		}
		one, err := b.blob6(row)
		if err != nil {
			return fmt.Errorf("blob %d: %w", i, err)
		}
		b.blobs = append(b.blobs, one)
	}
	return nil
}

// blob6 decodes a row of the table of blobs.
func (b *Bootstrap) blob6(row []byte) (blob, error) {
	one := blob{
		id:         string(bytes.TrimRight(row[:blobIDSize], "\x00")),
		chunkCount: le.Uint32(row[72:]),
		compress:   compressor(le.Uint32(row[76:])),
		features:   le.Uint32(row[84:]),
		info: infoPlace{
			compress: compressor(le.Uint32(row[108:])),
			off:      le.Uint64(row[112:]),
			csize:    le.Uint64(row[120:]),
			usize:    le.Uint64(row[128:]),
		},
		tocSize:    le.Uint32(row[104:]),
		tocDigest:  [chunk.SumSize]byte(row[136:]),
		metaDigest: [chunk.SumSize]byte(row[168:]),
	}
	switch le.Uint32(row[80:]) {
	case 0:
		one.digest = chunk.BLAKE3
	case 1:
		one.digest = chunk.SHA256
	default:
		return one, fmt.Errorf("%w: digest algorithm %d", ErrUnsupported, le.Uint32(row[80:]))
	}
	if one.compress > zstdFrame || one.info.compress > zstdFrame {
		return one, fmt.Errorf("%w: compressors %d and %d", ErrUnsupported, one.compress, one.info.compress)
	}
	if le.Uint32(row[216:]) != 0 {
		return one, ErrEncrypted
	}
	return one, checkFeatures(one.features)
}
