package peer

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestClusterKeyText(t *testing.T) {
	k := NewClusterKey()
	text := k.Text()
	got, err := ParseClusterKey("  " + text + "\n")
	if err != nil || got != k {
		t.Fatalf("ParseClusterKey(%q) = %v", text, err)
	}
	tests := []struct{ name, text, want string }{
		{"empty", "", "does not start"},
		{"no prefix", strings.TrimPrefix(text, keyPrefix), "does not start"},
		{"short", text[:len(text)-1], "letters and digits"},
		{"long", text + "a", "letters and digits"},
		{"upper case", keyPrefix + strings.ToUpper(text[len(keyPrefix):]), "letters and digits"},
		{"other letters", text[:20] + "1" + text[21:], "letters and digits"},
		{"swapped", swap(text), "typing error"},
		{"zeros", ClusterKey{}.Text(), "all zeros"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseClusterKey(tt.text)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
			if err != nil && len(tt.text) > 20 && strings.Contains(err.Error(), tt.text[16:20]) {
				t.Errorf("the error shows the key: %v", err)
			}
		})
	}
}

// swap exchanges two neighbouring letters that differ.
func swap(s string) string {
	b := []byte(s)
	for i := len(keyPrefix); ; i++ {
		if b[i] != b[i+1] {
			b[i], b[i+1] = b[i+1], b[i]
			return string(b)
		}
	}
}

func TestClusterKeyIsNotPrinted(t *testing.T) {
	k := NewClusterKey()
	for _, format := range []string{"%v", "%s", "%+v", "%#v", "%q"} {
		if s := fmt.Sprintf(format, Config{Key: k}.Key); len(s) > 20 {
			t.Errorf("%s prints %s", format, s)
		}
	}
}

func TestDerive(t *testing.T) {
	k := NewClusterKey()
	again := k
	if k.Derive("a") == k.Derive("b") || k.Derive("a") == NewClusterKey().Derive("a") || k.Derive("a") != again.Derive("a") {
		t.Error("derived keys are not one per key and purpose")
	}
}

func TestSecretFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	k := NewClusterKey()
	tests := []struct{ name, path, want string }{
		{"good", write("good", k.Text()+"\n", 0o600), ""},
		{"read-only", write("read-only", k.Text(), 0o400), ""},
		{"others may read", write("others", k.Text(), 0o604), "chmod 600"},
		{"group may read", write("group", k.Text(), 0o640), "chmod 600"},
		{"no key", write("none", "hello", 0o600), "does not start"},
		{"large", write("large", strings.Repeat("x", maxSecret+1), 0o600), "more than"},
		{"folder", dir, "not a regular file"},
		{"missing", filepath.Join(dir, "missing"), "no such file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := LoadClusterKey(tt.path)
			if tt.want == "" {
				if err != nil || got != k {
					t.Errorf("LoadClusterKey: %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), tt.path) {
				t.Errorf("error %v, want one with %q and the path", err, tt.want)
			}
		})
	}
}

func TestLoadIdentity(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "identity")
	first, err := LoadIdentity(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	again, err := LoadIdentity(path)
	if err != nil || again.ID() != first.ID() {
		t.Errorf("the second time: %v, %v", again, err)
	}
	if other, err := NewIdentity(); err != nil || other.ID() == first.ID() {
		t.Errorf("two nodes have one name: %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("files left: %v, %v", entries, err)
	}
	if err := os.WriteFile(path, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadIdentity(path); err == nil {
		t.Error("garbage was taken for an identity")
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadIdentity(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a file that others can read: %v", err)
	}
}
