// Package wire is the protocol by which nodes ask each other for chunks: what a
// request and its answers say, how they are written and what is refused.
//
// A frame is the length of a header (4 bytes, big-endian), the header (a
// protocol buffer) and, behind an [Answer] with [Bytes], the body: Size bytes of
// the chunk as they are. A client writes one [Request] and reads answers until
// [End]; each wanted part of each item is answered once, in any order. The body
// is not touched by this package, so that it can go from a file to a socket
// without passing through memory.
//
// Whatever is read is bounded before memory is set aside for it: headers to
// [MaxRequestHeader] and [MaxAnswerHeader] bytes, the fields of a header to a
// number that no valid message exceeds, lists and strings to the limits below. A
// message that was read has passed the same check as one that is written, so
// spans have offsets that don't overflow, parts in order and a window that can
// be found. That says nothing about the truth of a message: bytes must still be
// verified, and Reason is text by a stranger.
//
// The package knows no connection, no identity and no policy. It keeps no state;
// all its functions may be called at the same time. Slices of a decoded message
// belong to the caller.
package wire
