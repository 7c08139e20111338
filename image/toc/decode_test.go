package toc

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"graze/chunk"
	"graze/image"
	"graze/image/imagetest"
)

func TestReadBad(t *testing.T) {
	tests := []struct {
		name string
		toc  string
		says string // in the error
		want error  // ErrCorrupt if nil
	}{
		{"no JSON", "x", "JSON", nil},
		{"empty", "", "JSON", nil},
		{"list", "[]", "{", nil},
		{"no entries", `{"version":1}`, "no entries", nil},
		{"no version", `{"entries":[]}`, "no version", nil},
		{"other version", `{"version":2,"entries":[]}`, "version 2", ErrUnsupported},
		{"entries twice", `{"version":1,"entries":[],"entries":[]}`, "two lists", nil},
		{"entries no list", `{"version":1,"entries":{}}`, "list", nil},
		{"cut short", `{"version":1,"entries":[{"name":"a","type":"dir"}`, "EOF", nil},
		{"trailing", `{"version":1,"entries":[]} {}`, "after", nil},
		{"trailing garbage", `{"version":1,"entries":[]} ]`, "after", nil},
		{"no name", tocOf(`{"type":"dir"}`), "name", nil},
		{"NUL in name", tocOf(`{"name":"a\u0000","type":"dir"}`), "NUL", nil},
		{"no type", tocOf(`{"name":"abc"}`), `"abc"`, nil},
		{"unknown type", tocOf(`{"name":"abc","type":"socket"}`), `"abc"`, nil},
		{"name is a number", tocOf(`{"name":1,"type":"dir"}`), "number 0", nil},
		{"uid", tocOf(`{"name":"abc","type":"dir","uid":-1}`), `"abc": uid`, nil},
		{"gid", tocOf(`{"name":"abc","type":"dir","gid":4294967296}`), `"abc": gid`, nil},
		{"device", tocOf(`{"name":"abc","type":"char","devMajor":-1}`), `"abc": device`, nil},
		{"mtime", tocOf(`{"name":"abc","type":"dir","modtime":"yesterday"}`), `"abc": mod`, nil},
		{"xattr name", tocOf(`{"name":"abc","type":"dir","xattrs":{"":"AA=="}}`), `"abc": ext`, nil},
		{"xattr value", tocOf(`{"name":"abc","type":"dir","xattrs":{"user.a":"*"}}`), "base64", nil},
		{"empty symlink", tocOf(`{"name":"abc","type":"symlink"}`), `"abc": link`, nil},
		{"duplicate", tocOf(`{"name":"a","type":"dir"}`, `{"name":"./a/","type":"dir"}`), `"./a/": a second`, nil},
		{"duplicate of the root", tocOf(`{"name":"/","type":"dir"}`, `{"name":"..","type":"dir"}`), `"..": a second`, nil},
		{"link to itself", tocOf(`{"name":"abc","type":"hardlink","linkName":"/abc"}`), `"abc": hard links`, nil},
		{"links in a circle", tocOf(`{"name":"a","type":"hardlink","linkName":"b"}`, `{"name":"b","type":"hardlink","linkName":"c"}`, `{"name":"c","type":"hardlink","linkName":"b"}`), `"b": hard links`, nil},
		{"link to a directory", tocOf(`{"name":"a","type":"hardlink","linkName":"b"}`, `{"name":"b","type":"dir"}`), `"a": hard link`, nil},
		{"negative size", tocOf(`{"name":"abc","type":"reg","size":-1}`), `"abc": size`, nil},
		{"no digest", tocOf(`{"name":"abc","type":"reg","size":1}`), `"abc": unsupported`, ErrUnsupported},
		{"digest of two chunks", tocOf(`{"name":"abc","type":"reg","size":2,"chunkSize":1,"digest":"D"}`), "digest", ErrUnsupported},
		{"bad digest", tocOf(`{"name":"abc","type":"reg","size":1,"chunkDigest":"md5:00"}`), `"abc": chunk digest`, nil},
		{"large chunk", tocOf(`{"name":"abc","type":"reg","size":16777217,"chunkDigest":"D"}`), `"abc": unsupported`, ErrUnsupported},
		{"negative offset", tocOf(`{"name":"abc","type":"reg","size":1,"offset":-1,"chunkDigest":"D"}`), `"abc": chunk at -1`, nil},
		{"offset in the TOC", tocOf(`{"name":"abc","type":"reg","size":1,"offset":1000,"chunkDigest":"D"}`), `"abc": chunk at 1000`, nil},
		{"offset overflows", tocOf(`{"name":"abc","type":"reg","size":1,"offset":9223372036854775808,"chunkDigest":"D"}`), "number 0", nil},
		{"negative inner offset", tocOf(`{"name":"abc","type":"reg","size":1,"innerOffset":-1,"chunkDigest":"D"}`), `"abc": chunk`, nil},
		{"inner offset overflows", tocOf(`{"name":"abc","type":"reg","size":1,"innerOffset":9223372036854775807,"chunkDigest":"D"}`), `"abc": chunk`, nil},
		{"inner offset too far", tocOf(`{"name":"abc","type":"reg","size":1,"innerOffset":1040000,"chunkDigest":"D"}`), `"abc": chunk`, nil},
		{"chunks overlap", tocOf(`{"name":"a","type":"reg","size":9,"chunkDigest":"D"}`, `{"name":"abc","type":"reg","size":9,"innerOffset":8,"chunkDigest":"D"}`), `"abc": chunk at 8`, nil},
		{"chunks overlap, disorder", tocOf(`{"name":"abc","type":"reg","size":9,"innerOffset":8,"chunkDigest":"D"}`, `{"name":"a","type":"reg","size":9,"chunkDigest":"D"}`), `"abc": chunk at 8`, nil},
		{"chunk without file", tocOf(`{"name":"abc","type":"chunk","size":1,"chunkDigest":"D"}`), `"abc": chunk`, nil},
		{"chunk of a complete file", tocOf(`{"name":"abc","type":"reg","size":1,"chunkDigest":"D"}`, `{"name":"abc","type":"chunk","chunkOffset":1,"chunkSize":1,"chunkDigest":"D"}`), `"abc": chunk`, nil},
		{"chunk of another file", tocOf(`{"name":"a","type":"reg","size":2,"chunkSize":1,"chunkDigest":"D"}`, `{"name":"abc","type":"chunk","chunkOffset":1,"chunkSize":1,"chunkDigest":"D"}`), `"abc": chunk`, nil},
		{"chunks end early", tocOf(`{"name":"abc","type":"reg","size":2,"chunkSize":1,"chunkDigest":"D"}`), `"abc" end at 1 of 2`, nil},
		{"chunks end early in the middle", tocOf(`{"name":"abc","type":"reg","size":2,"chunkSize":1,"chunkDigest":"D"}`, `{"name":"a","type":"dir"}`), `"abc" end at 1 of 2`, nil},
		{"chunk past the end", tocOf(`{"name":"abc","type":"reg","size":2,"chunkSize":3,"chunkDigest":"D"}`), `"abc": chunk of 3`, nil},
		{"negative chunk size", tocOf(`{"name":"abc","type":"reg","size":2,"chunkSize":-3,"chunkDigest":"D"}`), `"abc": chunk of -3`, nil},
		{"first chunk not at 0", tocOf(`{"name":"abc","type":"reg","size":2,"chunkOffset":1,"chunkDigest":"D"}`), `"abc": chunk at 1`, nil},
		{"gap between chunks", tocOf(`{"name":"abc","type":"reg","size":9,"chunkSize":1,"chunkDigest":"D"}`, `{"name":"abc","type":"chunk","offset":9,"chunkOffset":2,"chunkDigest":"D"}`), `"abc": chunk at 2`, nil},
		{"unknown chunk type", tocOf(`{"name":"abc","type":"reg","size":1,"chunkType":"ones","chunkDigest":"D"}`), `"abc": unsupported`, ErrUnsupported},
		{"long value", tocOf(`{"name":"` + strings.Repeat("a", maxEntryJSON) + `","type":"dir"}`), "more than", ErrUnsupported},
		{"long unknown value", `{"x":"` + strings.Repeat("a", maxEntryJSON) + `"}`, "more than", ErrUnsupported},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Read(strings.NewReader(tt.toc), Config{Blob: testBlob, End: 1000})
			want := tt.want
			if want == nil {
				want = chunk.ErrCorrupt
			}
			if !errors.Is(err, want) || !strings.Contains(fmt.Sprint(err), tt.says) {
				t.Errorf("error %v; want %q that is %v", err, tt.says, want)
			}
			if len(fmt.Sprint(err)) > 1000 {
				t.Errorf("error of %d bytes", len(err.Error()))
			}
		})
	}
}

// TestReadDisorder reads a TOC whose files don't stand in the order of the
// layer, and whose keys and fields vary as writers do.
func TestReadDisorder(t *testing.T) {
	table := tocOf(
		`{"name":"z","type":"reg","size":3,"offset":500,"chunkSize":2,"chunkDigest":"D","Extra":[1,{}]}`,
		`{"name":"z","type":"chunk","offset":600,"chunkOffset":2,"chunkDigest":"D"}`,
		`{"name":"a","type":"reg","size":5,"offset":100,"innerOffset":7,"digest":"D","modtime":"2020-01-02T03:04:05.678+01:00"}`,
		`{"name":"b","type":"reg","size":7,"offset":100,"DIGEST":"D"}`,
		`{"name":"./.prefetch.landmark","type":"reg","size":1,"offset":500,"innerOffset":9}`,
		`{"name":"x/.prefetch.landmark","type":"fifo"}`,
		`{"name":"stargz.index.json","type":"reg","size":9,"offset":700,"chunkDigest":"D"}`,
	)
	l, err := read(table)
	if err != nil {
		t.Fatal(err)
	}
	checkTable(t, l)
	var spans []string
	for _, s := range l.Table.Spans {
		spans = append(spans, fmt.Sprintf("%d+%d:%d", s.Off, s.Len, s.Count))
	}
	if diff := cmp.Diff([]string{"100+400:2", "500+100:1", "600+100:1"}, spans); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
	if l.Prefetch != 2 {
		t.Errorf("prefetch %d, want 2", l.Prefetch)
	}
	mtime := time.Date(2020, 1, 2, 2, 4, 5, 678e6, time.UTC)
	want := []image.Entry{
		{Name: "z", Mode: syscall.S_IFREG, Size: 3, Extents: []chunk.Extent{{Len: 2, Chunk: 2}, {Off: 2, Len: 1, Chunk: 3}}},
		{Name: "a", Mode: syscall.S_IFREG, Size: 5, MTime: image.Time{Sec: mtime.Unix(), Nsec: 678e6}, Extents: []chunk.Extent{{Len: 5, Chunk: 1}}},
		{Name: "b", Mode: syscall.S_IFREG, Size: 7, Extents: []chunk.Extent{{Len: 7, Chunk: 0}}},
		{Name: "x/.prefetch.landmark", Mode: syscall.S_IFIFO},
	}
	if diff := cmp.Diff(want, collect(t, l)); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
}

func TestNoPrefetchWins(t *testing.T) {
	table := tocOf(
		`{"name":"a","type":"reg","size":5,"offset":100,"chunkDigest":"D"}`,
		`{"name":".prefetch.landmark","type":"reg","size":1,"offset":500}`,
		`{"name":".no.prefetch.landmark","type":"reg","size":1,"offset":600}`,
	)
	l, err := read(table)
	if err != nil || l.Prefetch != 0 {
		t.Errorf("layer %+v, error %v", l, err)
	}
}

// TestReadZeros reads the table of a file with chunks of zeros, as package
// zstdchunked finds it.
func TestReadZeros(t *testing.T) {
	table := tocOf(
		`{"name":"a","type":"reg","size":100,"offset":100,"chunkSize":10,"chunkType":"zeros","chunkDigest":"D"}`,
		`{"name":"a","type":"chunk","offset":200,"chunkOffset":10,"chunkSize":20,"chunkDigest":"D"}`,
		`{"name":"a","type":"chunk","offset":300,"chunkOffset":30,"chunkSize":30,"chunkType":"zeros","chunkDigest":"D"}`,
		`{"name":"a","type":"chunk","offset":400,"chunkOffset":60,"chunkSize":5,"chunkDigest":"D"}`,
		`{"name":"a","type":"chunk","offset":500,"chunkOffset":65,"chunkSize":35,"chunkType":"zeros"}`,
		`{"name":"b","type":"reg","size":7,"offset":600,"digest":"D"}`,
		`{"name":"a","type":"reg","size":0}`,
		`{"name":".prefetch.landmark","type":"reg","size":1,"offset":700,"digest":"D"}`,
	)
	x, err := Read(strings.NewReader(table), Config{Blob: testBlob, Codec: chunk.Zstd, End: 1000, Archive: true})
	if err != nil {
		t.Fatal(err)
	}
	l := layer(x)
	if err := imagetest.CheckMembers(l, chunk.Zstd); err != nil {
		t.Fatal(err)
	}
	want := []image.Entry{
		{Name: "a", Mode: syscall.S_IFREG, Size: 100, Extents: []chunk.Extent{{Off: 10, Len: 20, Chunk: 0}, {Off: 60, Len: 5, Chunk: 1}}},
		{Name: "b", Mode: syscall.S_IFREG, Size: 7, Extents: []chunk.Extent{{Len: 7, Chunk: 2}}},
		{Name: "a", Mode: syscall.S_IFREG},
		{Name: ".prefetch.landmark", Mode: syscall.S_IFREG, Size: 1, Extents: []chunk.Extent{{Len: 1, Chunk: 3}}},
	}
	if diff := cmp.Diff(want, collect(t, l)); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	var spans []string
	for _, s := range l.Table.Spans {
		spans = append(spans, fmt.Sprintf("%d+%d", s.Off, s.Len))
	}
	if diff := cmp.Diff([]string{"200+100", "400+100", "600+100", "700+300"}, spans); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
}

func TestReadBadConfig(t *testing.T) {
	for _, cfg := range []Config{{End: 1}, {Blob: testBlob, End: -1}, {Blob: testBlob, End: 1, Codec: chunk.LZ4}} {
		if _, err := Read(strings.NewReader(tocOf()), cfg); err == nil {
			t.Errorf("no error with %+v", cfg)
		}
	}
}

func TestCleanName(t *testing.T) {
	for in, want := range map[string]string{
		"a": "a", "a/": "a", "./a": "a", "/a": "a", "a//b": "a/b", "a/./b": "a/b", "../a": "a", "a/../b": "b",
		"./": "", ".": "", "/": "", "..": "", "a/b/": "a/b", "././a": "a", "..a": "..a", "a/.b/...": "a/.b/...",
	} {
		if got := cleanName(in); got != want {
			t.Errorf("cleanName(%q) = %q, want %q", in, got, want)
		}
	}
}
