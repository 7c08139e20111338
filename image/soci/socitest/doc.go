// Package socitest writes zTOCs for tests, and the index manifests that images are
// found with. The writer of SOCI needs zlib and cgo, so this one was written from a
// description of the format; tests compare the two where the other can be had.
package socitest
