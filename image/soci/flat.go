package soci

import (
	"encoding/binary"
	"fmt"

	"graze/chunk"
)

// A flat reads a flatbuffer. It follows no offset out of the buffer; the first that
// leads there is its error, and all that is read from then on is zero.
type flat struct {
	p   []byte
	err error
}

// A table is a table of a flatbuffer: its fields, each at an offset, or 0 for none.
type table struct {
	f      *flat
	at     int64 // in the buffer
	vtable int64
	size   int64 // of the vtable in bytes
}

// bytes returns n bytes at an offset.
func (f *flat) bytes(at, n int64) []byte {
	if f.err == nil && (at < 0 || n < 0 || at > int64(len(f.p)) || n > int64(len(f.p))-at) {
		f.err = fmt.Errorf("%w: %d bytes at %d of a flatbuffer of %d", chunk.ErrCorrupt, n, at, len(f.p))
	}
	if f.err != nil {
		return nil
	}
	return f.p[at : at+n : at+n]
}

func (f *flat) uint16(at int64) int64 {
	if p := f.bytes(at, 2); p != nil {
		return int64(binary.LittleEndian.Uint16(p))
	}
	return 0
}

func (f *flat) uint32(at int64) int64 {
	if p := f.bytes(at, 4); p != nil {
		return int64(binary.LittleEndian.Uint32(p))
	}
	return 0
}

// root returns the table that the buffer is about.
func (f *flat) root() table { return f.table(f.uint32(0)) }

// table returns the table at an offset.
func (f *flat) table(at int64) table {
	t := table{f: f, at: at}
	t.vtable = at - int64(int32(f.uint32(at)))
	t.size = f.uint16(t.vtable)
	f.bytes(t.vtable, t.size)
	return t
}

// field returns the offset of field number n, or 0 if the table lacks it.
func (t table) field(n int64) int64 {
	entry := 4 + 2*n // behind the sizes of the vtable and of the table
	if t.f == nil || t.f.err != nil || entry+2 > t.size {
		return 0
	}
	off := t.f.uint16(t.vtable + entry)
	if off == 0 {
		return 0
	}
	return t.at + off
}

// byte returns field n, or what it is by default.
func (t table) byte(n int64, missing byte) byte {
	if at := t.field(n); at != 0 {
		if p := t.f.bytes(at, 1); p != nil {
			return p[0]
		}
	}
	return missing
}

// uint32 returns field n, or 0.
func (t table) uint32(n int64) uint32 {
	if at := t.field(n); at != 0 {
		return uint32(t.f.uint32(at))
	}
	return 0
}

// int64 returns field n, or 0.
func (t table) int64(n int64) int64 {
	if at := t.field(n); at != 0 {
		if p := t.f.bytes(at, 8); p != nil {
			return int64(binary.LittleEndian.Uint64(p))
		}
	}
	return 0
}

// follow returns what field n refers to, or 0 for nothing.
func (t table) follow(n int64) int64 {
	if at := t.field(n); at != 0 {
		return at + t.f.uint32(at)
	}
	return 0
}

// table returns the table that field n refers to; one without fields if there is
// none.
func (t table) table(n int64) table {
	if at := t.follow(n); at != 0 {
		return t.f.table(at)
	}
	return table{}
}

// bytes returns the text, or the vector of bytes, that field n refers to.
func (t table) bytes(n int64) []byte {
	if at := t.follow(n); at != 0 {
		return t.f.bytes(at+4, t.f.uint32(at))
	}
	return nil
}

// A vector is a vector of references.
type vector struct {
	f  *flat
	at int64 // of the first
	n  int64
}

// vector returns the vector that field n refers to.
func (t table) vector(n int64) vector {
	at := t.follow(n)
	if at == 0 {
		return vector{}
	}
	v := vector{f: t.f, at: at + 4, n: t.f.uint32(at)}
	if t.f.bytes(v.at, 4*v.n) == nil {
		v.n = 0
	}
	return v
}

// follow returns what element i refers to. It must be below v.n.
func (v vector) follow(i int64) int64 {
	at := v.at + 4*i
	return at + v.f.uint32(at)
}

// table returns the table that element i is.
func (v vector) table(i int64) table { return v.f.table(v.follow(i)) }

// bytes returns the text that element i is.
func (v vector) bytes(i int64) []byte {
	at := v.follow(i)
	return v.f.bytes(at+4, v.f.uint32(at))
}
