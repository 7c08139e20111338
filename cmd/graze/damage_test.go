package main

import (
	"os"
	"path/filepath"
	"testing"

	"graze/image/imagetest"
)

// TestDamagedMetadata damages each file of a state folder but for the chunk store,
// whose own tests do that. Whatever is damaged is made again.
func TestDamagedMetadata(t *testing.T) {
	reg := startRegistry(t)
	ref := reg.push(t, smallImage(t, imagetest.Gzip(6)), "small:1")
	graze(t, "index", "--state", t.TempDir(), "--push", ref)
	state := t.TempDir()
	want := graze(t, "ls", "--state", state, "--index", "require", ref, "/etc")

	folders := []string{"views", "layers", "refs", "blobs/sha256"}
	for _, damaged := range [][]string{folders[:1], folders[1:2], folders[2:3], folders[3:], folders[:2], folders} {
		for _, damage := range []struct {
			name string
			do   func(p []byte) []byte
		}{
			{"empty", func([]byte) []byte { return nil }},
			{"cut short", func(p []byte) []byte { return p[:len(p)/2] }},
			{"zeros", func(p []byte) []byte { return make([]byte, len(p)) }},
			{"flipped bits", func(p []byte) []byte {
				for i := range p {
					p[i] ^= 0x80
				}
				return p
			}},
		} {
			for _, folder := range damaged {
				damageFiles(t, filepath.Join(state, folder), damage.do)
			}
			if got := graze(t, "ls", "--state", state, "--index", "require", ref, "/etc"); got != want {
				t.Errorf("%s of %v: ls prints\n%s", damage.name, damaged, got)
			}
		}
	}
}

// damageFiles passes the bytes of all files of a folder through do.
func damageFiles(t *testing.T, dir string, do func(p []byte) []byte) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no files in %s: %v", dir, err)
	}
	for _, name := range names {
		p, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, do(p), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
