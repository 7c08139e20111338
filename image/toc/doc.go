// Package toc reads the table of contents (TOC) that the formats eStargz and
// zstd:chunked have in common.
//
// A layer in one of these formats is an ordinary compressed archive, cut into
// members (of gzip) or frames (of Zstandard, here members too), so that the payload
// of each file, or of each chunk of a large one, can be decoded without what stands
// before it. The TOC is a JSON document that lists every entry of the archive, the
// member that each chunk is in and the SHA-256 of every chunk. Where it stands, and
// who vouches for it, is for the packages of the formats to know.
//
//   - A member with payload is a span, whose encoded bytes end where the next one
//     that the TOC knows of begins. What lies behind the last part of a span,
//     headers of entries mostly, needs no decoding. The TOC doesn't say where a
//     member lies in the decoded layer, so the Start of all spans is 0 and spans
//     that are read together must be decoded member by member.
//   - A chunk is a part of its member's span. Several may share a member.
//   - A chunk of zeros is a hole: it is in no extent, and never fetched.
//   - The landmark files at the root, which say what to prefetch, set
//     [Index.Prefetch]. Neither they nor the TOC itself are entries.
//
// The package doesn't interpret whiteouts, doesn't clean names and doesn't supply
// missing parents: that is the merge's work.
//
// A TOC is data from the network. It is parsed as a stream, and checked for every
// way in which offsets, sizes, chunk lists and links can contradict each other;
// errors name the entry. They wrap [chunk.ErrCorrupt] or [ErrUnsupported]. A file
// whose bytes no digest covers makes the table unusable: nothing is ever read
// unverified.
//
// An [Index] keeps about 64 bytes an entry beyond names, and the chunk table.
package toc
