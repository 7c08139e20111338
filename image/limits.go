package image

import "graze/chunk"

// What a view can hold. WriteView refuses layers that go beyond it.
const (
	MaxName       = 255      // bytes of one component of a path
	MaxDepth      = 2048     // directories from the root to an entry
	MaxSymlink    = 4095     // bytes of a symbolic link's target
	MaxLinks      = 255      // symbolic links that the path of one entry leads through
	MaxSteps      = 4096     // components of the path of one entry, with those of such links
	MaxXattrName  = 255      // bytes
	MaxXattrValue = 64 << 10 // bytes
	MaxEntries    = 16 << 20 // names in all layers together
	MaxExtents    = 64 << 20 // in all layers together
	MaxChunks     = 64 << 20 // in all layers together
	MaxBlobs      = 1 << 16  // in all layers together
	MaxBlobName   = 255      // bytes of a blob's digest
	MaxWindow     = 32 << 10 // bytes, as RFC 1951 has it

	// MaxFileSize bounds a file, so that its blocks can be counted.
	MaxFileSize = 1<<63 - blockSize
)

// maxInfo bounds the JSON section of a view file.
const maxInfo = 64 << 20

// maxCodec is the highest number of a codec.
const maxCodec = chunk.LZ4
