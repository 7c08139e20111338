package chunk

import (
	"bytes"
	"errors"
	"io/fs"
	"strings"
	"testing"
)

func TestRefCheck(t *testing.T) {
	id := SHA256.Sum([]byte("x"))
	tests := []struct {
		name string
		ref  Ref
		ok   bool
	}{
		{"smallest", Ref{id, 1}, true},
		{"largest", Ref{id, MaxSize}, true},
		{"empty", Ref{id, 0}, false},
		{"negative", Ref{id, -1}, false},
		{"too large", Ref{id, MaxSize + 1}, false},
		{"zero ID", Ref{ID{}, 1}, false},
		{"zero Ref", Ref{}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.ref.Check(); (err == nil) != tt.ok {
				t.Errorf("Check = %v", err)
			}
		})
	}
}

func TestVerify(t *testing.T) {
	p := []byte("the bytes of a chunk")
	ref := Ref{BLAKE3.Sum(p), int32(len(p))}
	flipped := bytes.Clone(p)
	flipped[3] ^= 1
	tests := []struct {
		name string
		ref  Ref
		p    []byte
		ok   bool
	}{
		{"right", ref, p, true},
		{"one bit wrong", ref, flipped, false},
		{"one byte short", ref, p[:len(p)-1], false},
		{"one byte long", ref, append(bytes.Clone(p), 0), false},
		{"nothing", ref, nil, false},
		{"right digest, wrong size", Ref{ref.ID, ref.Size + 1}, p, false},
		{"right size, other digest", Ref{SHA256.Sum(p[1:]), ref.Size}, p, false},
		{"other algorithm", Ref{SHA256.Sum(p), ref.Size}, p, true},
		{"empty chunk", Ref{SHA256.Sum(nil), 0}, nil, false},
		{"zero Ref", Ref{}, nil, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v, err := tt.ref.Verify(tt.p)
			if tt.ok {
				if err != nil || v.Ref() != tt.ref || !bytes.Equal(v.Bytes(), tt.p) {
					t.Errorf("Verify = %v, %v", v.Ref(), err)
				}
				return
			}
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("error %v does not wrap ErrCorrupt", err)
			}
			if v.Bytes() != nil || v.Ref() != (Ref{}) {
				t.Error("failed Verify returned bytes")
			}
		})
	}
}

// FuzzVerified checks what the rest of graze builds on: a Verified value with
// bytes in it has exactly the bytes that its Ref names.
func FuzzVerified(f *testing.F) {
	f.Add([]byte("abc"), []byte("abc"), int32(3), false)
	f.Add([]byte("abc"), []byte("abd"), int32(3), true)
	f.Add([]byte(""), []byte(""), int32(0), true)
	f.Fuzz(func(t *testing.T, named, given []byte, size int32, sha bool) {
		alg := BLAKE3
		if sha {
			alg = SHA256
		}
		ref := Ref{alg.Sum(named), size}
		v, err := ref.Verify(given)
		good := bytes.Equal(named, given) && int(size) == len(given) && size > 0
		if good != (err == nil) {
			t.Fatalf("Verify of %q as %q of size %d: %v", given, named, size, err)
		}
		if err != nil {
			if v.Bytes() != nil || v.Ref() != (Ref{}) || !errors.Is(err, ErrCorrupt) {
				t.Errorf("failed Verify returned %v, %v", v, err)
			}
			return
		}
		if alg.Sum(v.Bytes()) != v.Ref().ID || len(v.Bytes()) != int(v.Ref().Size) {
			t.Error("the bytes are not those of the Ref")
		}
	})
}

func TestSpanDecoded(t *testing.T) {
	ref := Ref{SHA256.Sum([]byte("x")), 10}
	tests := []struct {
		name  string
		parts []Part
		want  int64
	}{
		{"no part", nil, 0},
		{"one part", []Part{{ref, 0}}, 10},
		{"gap before the last", []Part{{ref, 5}, {ref, 100}}, 110},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := Span{Parts: tt.parts}
			if got := s.Decoded(); got != tt.want {
				t.Errorf("Decoded = %d, want %d", got, tt.want)
			}
		})
	}
}

func TestError(t *testing.T) {
	tests := []struct {
		name string
		err  Error
		want string
	}{
		{"all", Error{"fetch", "span 3", "registry", ErrDenied}, "fetch span 3 from registry: access denied"},
		{"no source", Error{"store", "c", "", ErrFull}, "store c: store is full"},
		{"only operation", Error{"read", "", "", fs.ErrClosed}, "read: file already closed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.err.Error(); got != tt.want {
				t.Errorf("Error = %q, want %q", got, tt.want)
			}
			if !errors.Is(&tt.err, tt.err.Err) {
				t.Error("the cause is hidden")
			}
		})
	}
}

// The numbers are written to disk; a change of order would misread it.
func TestNumbersAreFixed(t *testing.T) {
	codecs := map[Codec]string{1: "raw", 2: "gzip", 3: "deflate", 4: "zstd"}
	for n, name := range codecs {
		if n.String() != name {
			t.Errorf("codec %d is %s, want %s", n, n, name)
		}
	}
	if SHA256 != 1 || BLAKE3 != 2 {
		t.Errorf("algorithms are %d and %d, want 1 and 2", SHA256, BLAKE3)
	}
	for c := range Class(NumClasses) {
		if strings.Contains(c.String(), "(") {
			t.Errorf("class %d has no name", c)
		}
	}
	for _, s := range []string{Algorithm(7).String(), Codec(7).String(), Class(7).String()} {
		if !strings.HasSuffix(s, "(7)") {
			t.Errorf("an unknown number prints as %q", s)
		}
	}
}
