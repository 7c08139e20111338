package node

import (
	"encoding/hex"
	"testing"

	"github.com/google/go-cmp/cmp"

	"graze/chunk"
	"graze/directory"
)

func TestHoldsMessage(t *testing.T) {
	key := directory.KeyOf(chunk.SHA256.Sum([]byte("hello")))
	m := directory.Message{Start: 1, Keys: []directory.Key{key, 2}}
	p := encodeHolds(m)
	if got, want := hex.EncodeToString(p), "0000000000000001"+"2cf24dba5fb0a30e"+"0000000000000002"; got != want {
		t.Errorf("the message is %s, not %s", got, want)
	}
	got, err := parseHolds(p)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(m, got); d != "" {
		t.Errorf("(-sent +read)\n%s", d)
	}
	for name, bad := range map[string][]byte{
		"nothing": nil, "no start": p[:4], "half a key": p[:12], "too many keys": make([]byte, maxHolds+keySize),
	} {
		if _, err := parseHolds(bad); err == nil {
			t.Errorf("%s is no error", name)
		}
	}
	if _, err := parseHolds(make([]byte, maxHolds)); err != nil {
		t.Error(err)
	}
}

func FuzzHoldsMessage(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(encodeHolds(directory.Message{Start: 1, Keys: []directory.Key{2, 3}}))
	f.Fuzz(func(t *testing.T, p []byte) {
		m, err := parseHolds(p)
		if err == nil && string(encodeHolds(m)) != string(p) {
			t.Errorf("%x becomes %x", p, encodeHolds(m))
		}
	})
}
