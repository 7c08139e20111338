// Package socitest writes zTOCs for tests, and the index manifests that images are
// found with. The writer of SOCI is a C program in part; this one was written from a
// description of the format, and the tests compare the two where the other can be had.
package socitest
