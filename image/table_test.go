package image

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"graze/chunk"
)

// raw makes a row of a chunk of 100 bytes. Only its number tells it apart.
func raw(n byte, span uint32, at int64) ChunkRow {
	id, err := chunk.NewID(chunk.SHA256, [chunk.SumSize]byte{n})
	if err != nil {
		panic(err)
	}
	return ChunkRow{Ref: chunk.Ref{ID: id, Size: 100}, Span: span, At: at}
}

// deflated returns a layer of three spans, of which the last has a window in
// the first, and a file in each span but the first.
func deflated(names ...string) *Layer {
	var entries []*Entry
	for i, name := range names {
		entries = append(entries, file(name, 100, extent(0, 100, uint32(i+1), 0)))
	}
	l := layer(entries...)
	l.Table = Table{
		Blobs: []chunk.Blob{"sha256:windows", "sha256:unused", "sha256:layer"},
		Spans: []SpanRow{
			{Blob: 0, Codec: chunk.Raw, First: 0, Count: 1, Off: 7, Len: 100, Start: 7},
			{Blob: 2, Codec: chunk.Gzip, First: 3, Count: 1, Off: 0, Len: 50},
			{Blob: 2, Codec: chunk.Deflate, Bits: 3, First: 1, Count: 2, Off: 50, Len: 60, Start: 100, Window: WindowRow{Chunk: 0, Off: 10, Len: 90}},
		},
		Chunks: []ChunkRow{raw(0, 0, 0), raw(1, 2, 0), raw(2, 2, 150), raw(3, 1, 0)},
	}
	l.Prefetch = 2
	return l
}

func TestSpans(t *testing.T) {
	l := deflated("a", "b", "c")
	v := merged(t, l)
	if v.NumSpans() != 3 || v.NumChunks() != 4 {
		t.Fatalf("%d spans and %d chunks", v.NumSpans(), v.NumChunks())
	}
	for i := range l.Table.Spans {
		if want, got := l.Table.Span(uint32(i)), v.Span(uint32(i)); !reflect.DeepEqual(want, got) {
			t.Errorf("span %d is %+v, want %+v", i, got, want)
		}
	}
	w := v.Span(2).Window
	if w == nil || w.Off != 10 || w.Len != 90 || w.Ref() != l.Table.Chunks[0].Ref || w.Span.Blob != "sha256:windows" || w.Span.Window != nil {
		t.Errorf("window is %+v", w)
	}
	for name, n := range map[string]int{"a": 1, "b": 2, "c": 3} {
		ino, _ := v.Lookup(RootIno, name)
		for e := range v.Extents(ino, 0, 100) {
			ref, span := v.Chunk(e.Chunk)
			if want := l.Table.Chunks[n]; ref != want.Ref || span != want.Span {
				t.Errorf("%s is in chunk %s of span %d, not %+v", name, ref, span, want)
			}
		}
	}
	if got := slices.Collect(v.Prefetch()); !slices.Equal(got, []uint32{0, 1}) {
		t.Errorf("prefetch of spans %v", got)
	}
	if want := []chunk.Blob{"sha256:windows", "sha256:layer"}; !slices.Equal(v.blobs, want) {
		t.Errorf("blobs are %q", v.blobs)
	}
}

// TestHiddenSpans expects that spans of hidden files are left out, but not the
// windows of those that stay.
func TestHiddenSpans(t *testing.T) {
	tests := []struct {
		name     string
		hide     []string
		spans    []int // of the table
		prefetch []uint32
	}{
		{"all visible", nil, []int{0, 1, 2}, []uint32{0, 1}},
		{"window stays", []string{"a", "c"}, []int{0, 2}, []uint32{0}},
		{"half a span stays whole", []string{"a"}, []int{0, 1, 2}, []uint32{0, 1}},
		{"window goes", []string{"a", "b"}, []int{1}, []uint32{0}},
		{"nothing stays", []string{"a", "b", "c"}, nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var whiteouts []*Entry
			for _, name := range tt.hide {
				whiteouts = append(whiteouts, hidden(name))
			}
			l := deflated("a", "b", "c")
			v := merged(t, l, layer(whiteouts...))
			var got, want []string
			for n := range v.NumSpans() {
				s := v.Span(uint32(n))
				got = append(got, fmt.Sprintf("%s %d+%d %v", s.Blob, s.Off, s.Len, s.Parts))
			}
			for _, n := range tt.spans {
				s := l.Table.Span(uint32(n))
				want = append(want, fmt.Sprintf("%s %d+%d %v", s.Blob, s.Off, s.Len, s.Parts))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("spans differ (-want +got):\n%s", diff)
			}
			if got := slices.Collect(v.Prefetch()); !slices.Equal(got, tt.prefetch) {
				t.Errorf("prefetch of %v, want %v", got, tt.prefetch)
			}
		})
	}
}

func TestTablesOfLayers(t *testing.T) {
	v := merged(t,
		withChunks(layer(file("a", 10, extent(0, 10, 1, 0))), "x", 10, 20),
		layer(file("none", 5)),
		withChunks(layer(file("b", 30, extent(0, 10, 0, 0), extent(20, 10, 1, 5))), "y", 10, 20),
		withChunks(layer(file("c", 10, extent(0, 10, 1, 0))), "x", 10, 20),
	)
	want := text(
		"/ d755",
		"/a f644 10 0+10@"+tagOf("x", 1)+"/0",
		"/b f644 30 0+10@"+tagOf("y", 0)+"/0 20+10@"+tagOf("y", 1)+"/5",
		"/c f644 10 0+10@"+tagOf("x", 1)+"/0",
		"/none f644 5",
	)
	if diff := cmp.Diff(want, dump(v)); diff != "" {
		t.Errorf("view differs (-want +got):\n%s", diff)
	}
	if want := []chunk.Blob{"sha256:x", "sha256:y"}; !slices.Equal(v.blobs, want) {
		t.Errorf("blobs are %q", v.blobs)
	}
}

// tagOf returns how dump shows a chunk made by withChunks.
func tagOf(tag string, n int) string {
	l := withChunks(layer(), tag, make([]int32, n+1)...)
	return l.Table.Chunks[n].ID.String()[7:13]
}

func TestTableErrors(t *testing.T) {
	const maxInt64 = 1<<63 - 1
	tests := []struct {
		name   string
		change func(l *Layer)
		want   string
	}{
		{"span without chunks", func(l *Layer) { l.Table.Spans[1].Count = 0 }, "span 1: has no chunk"},
		{"blob out of range", func(l *Layer) { l.Table.Spans[1].Blob = 3 }, "span 1: is of blob 3 of 3"},
		{"empty blob", func(l *Layer) { l.Table.Blobs[1] = "" }, "blob 1 has a digest of 0 bytes"},
		{"long blob", func(l *Layer) { l.Table.Blobs[1] = chunk.Blob(strings.Repeat("x", 256)) }, "256 bytes"},
		{"unknown codec", func(l *Layer) { l.Table.Spans[0].Codec = 9 }, "unknown codec(9)"},
		{"no codec", func(l *Layer) { l.Table.Spans[0].Codec = 0 }, "unknown codec(0)"},
		{"bits", func(l *Layer) { l.Table.Spans[2].Bits = 8 }, "starts at bit 8"},
		{"bits of gzip", func(l *Layer) { l.Table.Spans[1].Bits = 1 }, "starts at bit 1"},
		{"negative offset", func(l *Layer) { l.Table.Spans[1].Off = -1 }, "at offset -1"},
		{"no length", func(l *Layer) { l.Table.Spans[1].Len = 0 }, "has 0 bytes"},
		{"overflowing length", func(l *Layer) { l.Table.Spans[1].Off, l.Table.Spans[1].Len = 2, maxInt64-1 }, "at offset 2"},
		{"negative start", func(l *Layer) { l.Table.Spans[1].Start = -1 }, "decoded offset -1"},
		{"overflowing start", func(l *Layer) { l.Table.Spans[1].Start = maxInt64 - 99 }, "decoded offset 0"},
		{"chunks out of range", func(l *Layer) { l.Table.Spans[1].First = 4 }, "1 chunks from number 4 of 4"},
		{"chunks wrap around", func(l *Layer) { l.Table.Spans[1].First = 1<<32 - 1 }, "of 4"},
		{"chunk of another span", func(l *Layer) { l.Table.Chunks[1].Span = 1 }, "names span 1"},
		{"chunk in two spans", func(l *Layer) { l.Table.Spans[1].First = 2 }, "names span 2"},
		{"chunk in no span", func(l *Layer) { l.Table.Chunks = append(l.Table.Chunks, raw(9, 0, 0)) }, "spans of 4 chunks, but there are 5"},
		{"chunks overlap", func(l *Layer) { l.Table.Chunks[2].At = 99 }, "decoded offset 99"},
		{"chunk before its span", func(l *Layer) { l.Table.Chunks[1].At = -1 }, "decoded offset -1"},
		{"chunk beyond raw span", func(l *Layer) { l.Table.Chunks[0].At = 1 }, "ends at offset 101 of a raw span"},
		{"empty chunk", func(l *Layer) { l.Table.Chunks[3].Size = 0 }, "size 0"},
		{"large chunk", func(l *Layer) { l.Table.Chunks[3].Size = chunk.MaxSize + 1 }, "size 16777217"},
		{"chunk without a name", func(l *Layer) { l.Table.Chunks[3].ID = chunk.ID{} }, "unknown digest"},
		{"window of a raw span", func(l *Layer) { l.Table.Spans[0].Window.Len = 1 }, "with raw has a window"},
		{"window in no chunk", func(l *Layer) { l.Table.Spans[2].Window.Chunk = 4 }, "chunk 4 of 4"},
		{"window in itself", func(l *Layer) { l.Table.Spans[2].Window.Chunk = 1 }, "own span 2 has a window"},
		{"window beyond chunk", func(l *Layer) { l.Table.Spans[2].Window.Off = 11 }, "offset 11 of a chunk of 100"},
		{"window before chunk", func(l *Layer) { l.Table.Spans[2].Window.Off = -1 }, "offset -1"},
		{"negative window", func(l *Layer) { l.Table.Spans[2].Window.Len = -1 }, "window of -1 bytes"},
		{"large window", func(l *Layer) { l.Table.Spans[2].Window.Len = MaxWindow + 1 }, "window of 32769 bytes"},
		{"window in a chunk of no span", func(l *Layer) { l.Table.Chunks[0].Span = 7 }, "names span 7"},
		{"window in a chunk of a later wrong span", func(l *Layer) {
			l.Table.Spans[2].Window.Chunk = 3
			l.Table.Chunks[3].Span = 7
			l.Table.Spans[1], l.Table.Spans[2] = l.Table.Spans[2], l.Table.Spans[1]
			l.Table.Chunks[1].Span, l.Table.Chunks[2].Span = 1, 1
		}, "span 7 of 3"},
		{"prefetch", func(l *Layer) { l.Prefetch = 4 }, "prefetch of 4 spans of 3"},
		{"negative prefetch", func(l *Layer) { l.Prefetch = -1 }, "prefetch of -1 spans"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := deflated("a", "b", "c")
			tt.change(l)
			err := WriteView(t.TempDir()+"/view", []*Layer{layer(), l}, Info{})
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "layer 1 (") {
				t.Errorf("got error %v, want one of layer 1 with %q", err, tt.want)
			}
		})
	}
}
