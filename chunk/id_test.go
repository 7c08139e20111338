package chunk

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestSum(t *testing.T) {
	// The sums of "abc" as FIPS 180-2 and the BLAKE3 reference give them.
	tests := []struct {
		alg  Algorithm
		want string
	}{
		{SHA256, "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
		{BLAKE3, "blake3:6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"},
	}
	for _, tt := range tests {
		t.Run(tt.alg.String(), func(t *testing.T) {
			id := tt.alg.Sum([]byte("abc"))
			if id.String() != tt.want {
				t.Errorf("Sum = %s, want %s", id, tt.want)
			}
			if id.Algorithm() != tt.alg || id.IsZero() {
				t.Errorf("Algorithm = %s, IsZero = %t", id.Algorithm(), id.IsZero())
			}
			again, err := NewID(id.Algorithm(), id.Sum())
			if err != nil || again != id {
				t.Errorf("NewID of the parts = %s, %v", again, err)
			}
		})
	}
}

func TestSumPanicsOnUnknownAlgorithm(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("Sum with algorithm 9 returned")
		}
	}()
	Algorithm(9).Sum(nil)
}

func TestParseID(t *testing.T) {
	digits := strings.Repeat("0a", SumSize)
	tests := []struct {
		name, in string
		err      string // part of the error; empty: parses
	}{
		{"sha256", "sha256:" + digits, ""},
		{"blake3", "blake3:" + digits, ""},
		{"all zeros", "sha256:" + strings.Repeat("0", 64), ""},
		{"empty", "", "neither sha256 nor blake3"},
		{"no colon", "sha256" + digits, "neither"},
		{"only digits", digits, "neither"},
		{"other algorithm", "sha512:" + digits, "neither"},
		{"upper-case algorithm", "SHA256:" + digits, "neither"},
		{"no digits", "sha256:", "no 64 lower-case"},
		{"one digit short", "sha256:" + digits[1:], "no 64 lower-case"},
		{"one digit long", "sha256:" + digits + "0", "no 64 lower-case"},
		{"upper-case digits", "sha256:" + strings.ToUpper(digits), "no 64 lower-case"},
		{"not a digit", "sha256:" + "g" + digits[1:], "invalid byte"},
		{"leading space", " sha256:" + digits, "neither"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			id, err := ParseID(tt.in)
			if tt.err == "" {
				if err != nil || id.String() != tt.in {
					t.Errorf("ParseID = %s, %v", id, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want one with %q", err, tt.err)
			}
			if !id.IsZero() {
				t.Errorf("failed ParseID returned %s, not the zero ID", id)
			}
		})
	}
}

// Errors quote what they were given; a digest from the network may be long.
func TestParseIDCapsItsErrors(t *testing.T) {
	_, err := ParseID("sha256:" + strings.Repeat("x", 1<<16))
	if err == nil || len(err.Error()) > 300 {
		t.Errorf("error has %d bytes", len(err.Error()))
	}
}

func TestNewIDRefusesUnknownAlgorithms(t *testing.T) {
	for _, alg := range []Algorithm{0, 3, 255} {
		if id, err := NewID(alg, [SumSize]byte{1}); err == nil || !id.IsZero() {
			t.Errorf("NewID(%d) = %s, %v", alg, id, err)
		}
	}
}

func TestIDInJSON(t *testing.T) {
	in := map[ID]int{SHA256.Sum([]byte("a")): 1, BLAKE3.Sum([]byte("a")): 2}
	text, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out map[ID]int
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	if len(out) != len(in) {
		t.Fatalf("%d keys came back, want %d", len(out), len(in))
	}
	for id, n := range in {
		if out[id] != n {
			t.Errorf("%s came back as %d, want %d", id, out[id], n)
		}
	}
	var id ID
	if err := json.Unmarshal([]byte(`"sha256:xyz"`), &id); err == nil {
		t.Error("a bad digest was accepted from JSON")
	}
}

func FuzzParseID(f *testing.F) {
	f.Add("sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
	f.Add("blake3:6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85")
	f.Add("sha256:")
	f.Add(":")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseID(s)
		if err != nil {
			if !id.IsZero() {
				t.Errorf("failed ParseID returned %s", id)
			}
			return
		}
		if id.String() != s {
			t.Errorf("ParseID(%q) prints as %q", s, id)
		}
		if !id.Algorithm().Valid() || id.IsZero() {
			t.Errorf("ParseID(%q) has algorithm %s", s, id.Algorithm())
		}
	})
}

func BenchmarkSum(b *testing.B) {
	p := make([]byte, 256<<10)
	for _, alg := range []Algorithm{SHA256, BLAKE3} {
		b.Run("alg="+alg.String(), func(b *testing.B) {
			b.SetBytes(int64(len(p)))
			b.ReportAllocs()
			for b.Loop() {
				alg.Sum(p)
			}
		})
	}
}
