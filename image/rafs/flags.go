package rafs

import (
	"fmt"

	"graze/chunk"
)

// The flags of a superblock. Bits that are in none of these are not known to any
// reader, and an image that has one is refused.
const (
	flagUncompressed = 1 << 0
	flagLZ4          = 1 << 1
	flagBLAKE3       = 1 << 2
	flagSHA256       = 1 << 3
	flagOwners       = 1 << 4 // uid and gid are those of the files; else all belong to root
	flagXattrs       = 1 << 5
	flagGzip         = 1 << 6
	flagZstd         = 1 << 7
	flagDigests      = 1 << 8 // the digests of chunks are in the blobs
	flagTarfs        = 1 << 9
	flagPlain        = 1 << 24 // not encrypted
	flagAES          = 1 << 25
	flagsCompatible  = 0x3f << 26 // without a meaning, and to be ignored

	flagsCompressor = flagUncompressed | flagLZ4 | flagGzip | flagZstd
	flagsDigest     = flagBLAKE3 | flagSHA256
	knownFlags      = flagsCompressor | flagsDigest | flagOwners | flagXattrs | flagDigests | flagTarfs | flagPlain | flagAES | flagsCompatible
)

// The features of a blob. The low half must be understood, the high half may be
// ignored.
const (
	featureInfoV2    = 1 << 2 // chunk information in rows of 24 bytes
	featureZRan      = 1 << 3 // the blob is a .tar.gz layer, read from contexts on
	featureSeparate  = 1 << 4 // data and meta are two blobs
	featureTarfs     = 1 << 6
	featureBatch     = 1 << 7
	featureEncrypted = 1 << 8
	featureExternal  = 1 << 11
	featuresUnknown  = 0xf000
)

// The flags of a chunk.
const (
	chunkCompressed = 1 << 0
	chunkEncrypted  = 1 << 2
	chunkBatch      = 1 << 3
)

// A compressor is how the chunks of a blob, or its meta, are encoded.
type compressor uint32

// The compressors, by their numbers in the tables of version 6.
const (
	plain     compressor = 0
	lz4Block  compressor = 1
	gzipped   compressor = 2
	zstdFrame compressor = 3
)

// codec returns the codec of spans for c.
func (c compressor) codec() chunk.Codec {
	switch c {
	case lz4Block:
		return chunk.LZ4
	case gzipped:
		return chunk.Gzip
	case zstdFrame:
		return chunk.Zstd
	}
	return chunk.Raw
}

// checkFlags fails on flags that mean that an image can't be read.
func checkFlags(flags uint64) error {
	if unknown := flags &^ knownFlags; unknown != 0 {
		return fmt.Errorf("%w: flags %#x in the superblock", ErrUnsupported, unknown)
	}
	if flags&flagAES != 0 {
		return ErrEncrypted
	}
	return nil
}

// compressorOf returns what the flags of a superblock say of compression. Version
// 5 may say nothing, which means LZ4.
func compressorOf(flags uint64) (compressor, error) {
	switch flags & flagsCompressor {
	case flagUncompressed:
		return plain, nil
	case flagLZ4:
		return lz4Block, nil
	case flagGzip:
		return gzipped, nil
	case flagZstd:
		return zstdFrame, nil
	case 0:
		return lz4Block, nil
	}
	return 0, fmt.Errorf("%w: flags %#x name several compressors", chunk.ErrCorrupt, flags)
}

// algorithmOf returns what the flags of a superblock say of digests. Version 5
// may say nothing, which means BLAKE3.
func algorithmOf(flags uint64) (chunk.Algorithm, error) {
	switch flags & flagsDigest {
	case flagSHA256:
		return chunk.SHA256, nil
	case flagBLAKE3, 0:
		return chunk.BLAKE3, nil
	}
	return 0, fmt.Errorf("%w: flags %#x name several digests", chunk.ErrCorrupt, flags)
}

// checkFeatures fails on features of a blob that mean that it can't be read.
func checkFeatures(f uint32) error {
	switch {
	case f&featuresUnknown != 0:
		return fmt.Errorf("%w: features %#x of a blob", ErrUnsupported, f&featuresUnknown)
	case f&featureEncrypted != 0:
		return ErrEncrypted
	case f&featureExternal != 0:
		return fmt.Errorf("%w: a blob is kept outside of the registry", ErrUnsupported)
	}
	return nil
}
