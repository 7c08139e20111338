package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"graze/chunk"
	"graze/wire/wirepb"
)

const blob = chunk.Blob("sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef")

func part(s string, at int64) chunk.Part {
	return chunk.Part{Ref: chunk.Ref{ID: chunk.BLAKE3.Sum([]byte(s)), Size: int32(len(s))}, At: at}
}

// full returns a request with every field set.
func full() *Request {
	window := chunk.Span{Blob: blob, Off: 1, Len: 40000, Codec: chunk.Gzip, Parts: []chunk.Part{part(strings.Repeat("w", 40000), 0)}}
	return &Request{
		Class: chunk.Prefetch, Deadline: 1500 * time.Millisecond, Mode: Home, Level: 1,
		Via: []chunk.PeerID{"12D3KooWA", "12D3KooWB"}, Epoch: math.MaxUint64,
		Repositories: []string{"registry.example:5000/team/app", "[::1]:5000/x"},
		Images:       []chunk.Blob{chunk.Blob("sha256:" + strings.Repeat("1f", 32))},
		Items: []Item{
			{
				Span: chunk.Span{
					Blob: blob, Off: 1 << 40, Len: 1 << 20, Codec: chunk.Deflate, Bits: 7, Start: 1 << 41,
					Window: &chunk.Slice{Span: window, Part: 0, Off: 7232, Len: 32768},
					Parts:  []chunk.Part{part("one", 5), part("two", 8), part("three", 100)},
				},
				Parts: []int{0, 2},
			},
			{Span: chunk.Span{Blob: blob, Len: 3, Codec: chunk.Raw, Parts: []chunk.Part{part("raw", 0)}}},
			{Span: chunk.Span{Blob: blob, Off: 3, Len: 5, Codec: chunk.LZ4, Parts: []chunk.Part{part("lz4", 0)}}},
		},
	}
}

// many returns the smallest request for n chunks.
func many(n int) *Request {
	q := &Request{Mode: Held, Items: make([]Item, n)}
	for i := range q.Items {
		q.Items[i].Span.Parts = []chunk.Part{part("x", 0)}
	}
	return q
}

var cmpRequest = cmp.Options{cmp.Comparer(func(a, b chunk.ID) bool { return a == b })}

func TestRequestRoundTrip(t *testing.T) {
	tests := []struct {
		name string
		q    *Request
	}{
		{"everything", full()},
		{"only digests", many(1)},
		{"find", &Request{Mode: Find, Items: many(2).Items}},
		{"most items", many(MaxItems)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var buf bytes.Buffer
			if err := WriteRequest(&buf, tt.q); err != nil {
				t.Fatal(err)
			}
			buf.WriteString("next")
			got, err := ReadRequest(&buf)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.q, got, cmpRequest); d != "" {
				t.Errorf("(-sent +read)\n%s", d)
			}
			if buf.String() != "next" {
				t.Errorf("%d bytes left, want those behind the frame", buf.Len())
			}
		})
	}
}

func TestAnswerRoundTrip(t *testing.T) {
	holders := make([]Holder, MaxHolders)
	for i := range holders {
		holders[i] = Holder{ID: "12D3KooWHolder", Addr: "[2001:db8::1]:7946"}
	}
	holders[1].Addr = "node-1.rack_2.example.:1"
	tests := []struct {
		name string
		a    Answer
	}{
		{"bytes", Answer{Item: 0, Part: MaxParts - 1, Status: Bytes, Size: chunk.MaxSize}},
		{"redirect", Answer{Item: 3, Part: 2, Status: Redirect, Holders: holders}},
		{"busy", Answer{Item: All, Part: All, Status: Busy, Wait: time.Millisecond}},
		{"absent", Answer{Item: 1, Part: All, Status: Absent}},
		{"failed", Answer{Status: Failed, Reason: strings.Repeat("r", MaxReason), Wait: MaxWait}},
		{"end", Answer{Item: All, Part: All, Status: End}},
		{"alive", Answer{Item: All, Part: All, Status: Alive}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var buf bytes.Buffer
			if err := WriteAnswer(&buf, &tt.a); err != nil {
				t.Fatal(err)
			}
			got, err := ReadAnswer(&buf)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(&tt.a, got); d != "" {
				t.Errorf("(-sent +read)\n%s", d)
			}
		})
	}
}

func TestRequestCheck(t *testing.T) {
	// item 0 of full is a deflate span with a window, item 1 a raw one.
	span := func(q *Request) *chunk.Span { return &q.Items[0].Span }
	tests := []struct {
		name string
		do   func(q *Request)
		want string
	}{
		{"class", func(q *Request) { q.Class = chunk.NumClasses }, "unknown class"},
		{"negative deadline", func(q *Request) { q.Deadline = -1 }, "deadline"},
		{"long deadline", func(q *Request) { q.Deadline = MaxDeadline + 1 }, "deadline"},
		{"no mode", func(q *Request) { q.Mode = 0 }, "unknown mode"},
		{"another mode", func(q *Request) { q.Mode = Find + 1 }, "unknown mode"},
		{"level", func(q *Request) { q.Level = 2 }, "level"},
		{"long way", func(q *Request) { q.Via = make([]chunk.PeerID, MaxVia+1) }, "passed it on"},
		{"no peer id", func(q *Request) { q.Via[0] = "" }, "peer id"},
		{"peer id with a newline", func(q *Request) { q.Via[0] = "a\nb" }, "peer id"},
		{"many repositories", func(q *Request) { q.Repositories = make([]string, MaxRepositories+1) }, "repositories"},
		{"URL", func(q *Request) { q.Repositories[0] = "http://host/x" }, "no name of a repository"},
		{"climbing path", func(q *Request) { q.Repositories[0] = "host/../x" }, "no name of a repository"},
		{"no path", func(q *Request) { q.Repositories[0] = "host" }, "no name of a repository"},
		{"query", func(q *Request) { q.Repositories[0] = "host/x?y=z" }, "no name of a repository"},
		{"long repository", func(q *Request) { q.Repositories[0] = "h/" + strings.Repeat("x", maxRepository) }, "no name of a repository"},
		{"many images", func(q *Request) { q.Images = make([]chunk.Blob, MaxImages+1) }, "images"},
		{"image is a name", func(q *Request) { q.Images[0] = "registry.example/app" }, "digest of a blob"},
		{"nothing", func(q *Request) { q.Items = nil }, "nothing"},
		{"too many items", func(q *Request) { *q = *many(MaxItems + 1) }, "items"},
		{"too many parts", func(q *Request) { *q = *many(MaxItems); q.Items[0].Span.Parts = make([]chunk.Part, 2) }, "parts"},
		{"no part", func(q *Request) { span(q).Parts = nil }, "no part"},
		{"no part is wanted", func(q *Request) { q.Items[0].Parts = []int{} }, "no part is wanted"},
		{"wanted twice", func(q *Request) { q.Items[0].Parts = []int{1, 1} }, "wanted part"},
		{"wanted beyond", func(q *Request) { q.Items[0].Parts = []int{3} }, "wanted part"},
		{"negative part", func(q *Request) { q.Items[0].Parts = []int{-1} }, "wanted part"},
		{"chunk too large", func(q *Request) { span(q).Parts[2].Size = chunk.MaxSize + 1 }, "size"},
		{"chunk without digest", func(q *Request) { span(q).Parts[2].ID = chunk.ID{} }, "digest"},
		{"overlap", func(q *Request) { span(q).Parts[1].At = 7 }, "the one before ends"},
		{"part overflows", func(q *Request) { span(q).Parts[2].At = math.MaxInt64 }, "the one before ends"},
		{"blob is a path", func(q *Request) { span(q).Blob = "../../etc/passwd" }, "digest of a blob"},
		{"no blob", func(q *Request) { span(q).Blob = "" }, "digest of a blob"},
		{"place without blob", func(q *Request) { q.Mode = Held; span(q).Blob = "" }, "no blob"},
		{"negative offset", func(q *Request) { span(q).Off = -1 }, "can't be"},
		{"empty span", func(q *Request) { span(q).Len = 0 }, "can't be"},
		{"span overflows", func(q *Request) { span(q).Off = math.MaxInt64 }, "can't be"},
		{"start overflows", func(q *Request) { span(q).Start = math.MaxInt64 }, "decoded offset"},
		{"codec", func(q *Request) { span(q).Codec = 9 }, "unknown codec"},
		{"bits", func(q *Request) { span(q).Bits = 8 }, "bits"},
		{"raw with bits", func(q *Request) { q.Items[1].Span.Bits = 1 }, "has bits"},
		{"raw with window", func(q *Request) { q.Items[1].Span.Window = span(q).Window }, "a window"},
		{"window without span", func(q *Request) { span(q).Window.Span = chunk.Span{} }, "window"},
		{"window with window", func(q *Request) { span(q).Window.Span.Window = &chunk.Slice{} }, "window itself"},
		{"window of no part", func(q *Request) { span(q).Window.Part = 1 }, "in part 1"},
		{"window beyond chunk", func(q *Request) { span(q).Window.Off++ }, "the window is bytes"},
		{"window too long", func(q *Request) { span(q).Window.Off, span(q).Window.Len = 0, maxWindow+1 }, "the window is bytes"},
		{"empty window", func(q *Request) { span(q).Window.Len = 0 }, "the window is bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			q := full()
			tt.do(q)
			if _, err := AppendRequest(nil, q); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}

func TestAnswerCheck(t *testing.T) {
	holder := Holder{ID: "12D3KooW", Addr: "10.0.0.1:1"}
	with := func(addr string) Answer {
		return Answer{Status: Redirect, Holders: []Holder{holder, {ID: "x", Addr: addr}}}
	}
	tests := []struct {
		name string
		a    Answer
	}{
		{"no status", Answer{}},
		{"unknown status", Answer{Status: 99}},
		{"bytes of an item", Answer{Part: All, Status: Bytes, Size: 1}},
		{"empty body", Answer{Status: Bytes}},
		{"body too large", Answer{Status: Bytes, Size: chunk.MaxSize + 1}},
		{"negative body", Answer{Status: Bytes, Size: math.MinInt32}},
		{"absent with body", Answer{Status: Absent, Size: 1}},
		{"redirect to nobody", Answer{Status: Redirect}},
		{"million holders", Answer{Status: Redirect, Holders: make([]Holder, 1_000_000)}},
		{"item too high", Answer{Item: MaxItems, Status: Absent}},
		{"part of all items", Answer{Item: All, Part: 1, Status: Absent}},
		{"negative item", Answer{Item: -2, Status: Absent}},
		{"end of an item", Answer{Status: End}},
		{"end with a reason", Answer{Item: All, Part: All, Status: End, Reason: "x"}},
		{"long wait", Answer{Status: Busy, Wait: MaxWait + 1}},
		{"long reason", Answer{Status: Failed, Reason: strings.Repeat("x", MaxReason+1)}},
		{"reason not UTF-8", Answer{Status: Failed, Reason: "\xff"}},
		{"holder without port", with("10.0.0.1")},
		{"holder with port 0", with("10.0.0.1:0")},
		{"holder with path", with("10.0.0.1/x:1")},
		{"holder with spaces", with("a b:1")},
		{"holder without host", with(":1")},
		{"long holder", with(strings.Repeat("h", maxAddr) + ":1")},
		{"holder without id", Answer{Status: Redirect, Holders: []Holder{{Addr: "h:1"}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := AppendAnswer(nil, &tt.a); err == nil {
				t.Errorf("%+v was accepted", tt.a)
			}
		})
	}
}

func frame(header []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(header))), header...)
}

func TestReadHostile(t *testing.T) {
	marshal := func(m proto.Message) []byte {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	deep := &wirepb.Span{}
	for range 20 {
		deep = &wirepb.Span{Window: &wirepb.Slice{Span: deep}}
	}
	good, err := AppendRequest(nil, full())
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		in   []byte
		want error
	}{
		{"nothing", nil, io.EOF},
		{"half a length", []byte{0, 0}, io.ErrUnexpectedEOF},
		{"length only", []byte{0, 0, 0, 9}, io.ErrUnexpectedEOF},
		{"cut header", good[:len(good)-1], io.ErrUnexpectedEOF},
		{"no header", []byte{0, 0, 0, 0}, ErrFrame},
		{"huge header", []byte{0xff, 0xff, 0xff, 0xff}, ErrFrame},
		{"header just too long", binary.BigEndian.AppendUint32(nil, MaxRequestHeader+1), ErrFrame},
		{"no protobuf", frame([]byte("\xff\xff\xff")), ErrFrame},
		{"100,000 empty items", frame(bytes.Repeat([]byte{8<<3 | 2, 0}, 100_000)), ErrFrame},
		{"100,000 wanted parts", frame(marshal(&wirepb.Request{Items: []*wirepb.Item{{Parts: make([]uint32, 100_000)}}})), ErrFrame},
		{"spans in windows in spans", frame(marshal(&wirepb.Request{Items: []*wirepb.Item{{Span: deep}}})), ErrFrame},
		{"class that wraps", frame(marshal(&wirepb.Request{Class: 256})), ErrFrame},
		{"time that overflows", frame(marshal(&wirepb.Request{Deadline: math.MaxUint64})), ErrFrame},
		{"short digest", frame(marshal(&wirepb.Request{Items: []*wirepb.Item{{Span: &wirepb.Span{Parts: []*wirepb.Part{{Algorithm: 1, Sum: []byte("x"), Size: 1}}}}}})), ErrFrame},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			q, err := ReadRequest(bytes.NewReader(tt.in))
			if !errors.Is(err, tt.want) || q != nil {
				t.Errorf("ReadRequest = %v, %v; want %v", q, err, tt.want)
			}
		})
	}
}

// A later version may add fields; they are no reason to refuse a message.
func TestUnknownFieldIsSkipped(t *testing.T) {
	b, err := AppendAnswer(nil, &Answer{Item: 1, Part: 2, Status: Absent})
	if err != nil {
		t.Fatal(err)
	}
	a, err := ReadAnswer(bytes.NewReader(frame(append(b[prefix:], 15<<3|2, 1, 'x'))))
	if err != nil || a.Status != Absent {
		t.Errorf("ReadAnswer = %v, %v", a, err)
	}
}

func TestCutReason(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"short", "because", "because"},
		{"no UTF-8", "a\xffb", "a\uFFFDb"},
		{"cut within a rune", strings.Repeat("x", MaxReason-1) + "é", strings.Repeat("x", MaxReason-1)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := CutReason(tt.in); got != tt.want {
				t.Errorf("CutReason = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestWants(t *testing.T) {
	q := full()
	if got := q.Wanted(); got != 4 {
		t.Errorf("Wanted = %d, want 4", got)
	}
	for i, want := range []bool{true, false, true, false} {
		if q.Items[0].Wants(i) != want {
			t.Errorf("item 0 wants part %d: %t", i, !want)
		}
	}
	if q.Items[1].Wants(-1) || !q.Items[1].Wants(0) || q.Items[1].Wants(1) {
		t.Error("item 1 wants another part than 0")
	}
}

func FuzzRequest(f *testing.F) {
	for _, q := range []*Request{full(), many(3)} {
		b, err := AppendRequest(nil, q)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add(frame(bytes.Repeat([]byte{8<<3 | 2, 0}, 5000)))
	f.Fuzz(func(t *testing.T, in []byte) {
		q, err := ReadRequest(bytes.NewReader(in))
		if err != nil {
			return
		}
		b, err := AppendRequest(nil, q)
		if err != nil {
			t.Fatalf("what was read can't be sent: %v", err)
		}
		again, err := ReadRequest(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(q, again, cmpRequest); d != "" {
			t.Errorf("(-read +read again)\n%s", d)
		}
	})
}

func FuzzAnswer(f *testing.F) {
	for _, a := range []Answer{
		{Status: Bytes, Size: 7},
		{Item: All, Part: All, Status: Busy, Wait: time.Second},
		{Item: 1, Part: 2, Status: Redirect, Holders: []Holder{{"12D3KooW", "h:1"}}, Reason: "x"},
	} {
		b, err := AppendAnswer(nil, &a)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		a, err := ReadAnswer(bytes.NewReader(in))
		if err != nil {
			return
		}
		b, err := AppendAnswer(nil, a)
		if err != nil {
			t.Fatalf("what was read can't be sent: %v", err)
		}
		again, err := ReadAnswer(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(a, again); d != "" {
			t.Errorf("(-read +read again)\n%s", d)
		}
	})
}

func BenchmarkDecodeRequest(b *testing.B) {
	frame, err := AppendRequest(nil, full())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeRequest(frame[prefix:]); err != nil {
			b.Fatal(err)
		}
	}
}
