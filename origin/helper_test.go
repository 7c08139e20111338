package origin

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"graze/chunk"
)

// newHelper puts a credential helper into the path, which does what a script says,
// and returns a keychain that asks it.
func newHelper(t *testing.T, script string) DockerConfig {
	t.Helper()
	bin, dir := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "docker-credential-test"), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	writeFiles(t, dir, map[string]string{"config.json": `{"credsStore": "test"}`})
	return DockerConfig{Dir: dir}
}

// TestHelperRotates has a helper's secret be wrong, right, and another one.
func TestHelperRotates(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	keys := newHelper(t, `echo "{\"Username\":\"$(cat `+secret+`)\",\"Secret\":\"p\"}"`)
	f, d := newFake(), new(door)
	f.addImage("a", platform("linux/amd64"))
	f.before = d.before
	c, ref := newClient(t, Config{Keychain: keys}), serve(t, f)+"/app:a"
	for _, step := range []struct{ secret, welcome, err string }{
		{"wrong", "right", `with credentials of "wrong"`},
		{"right", "right", ""},
		{"right", "next", `with credentials of "right"`}, // the registry's was changed first
		{"next", "next", ""},
	} {
		if err := os.WriteFile(secret, []byte(step.secret), 0o600); err != nil {
			t.Fatal(err)
		}
		d.admit(step.welcome)
		checkError(t, onceResolve(t, c, ref), step.err)
	}
}

// TestHelperHangs has a helper that never answers: that may pass, and is no reason
// to wait for long.
func TestHelperHangs(t *testing.T) {
	keys := newHelper(t, "exec sleep 600")
	keys.Timeout = 50 * time.Millisecond
	_, err := keys.credential(t.Context(), "r.test", "app")
	if !errors.Is(err, chunk.ErrUnavailable) || !strings.Contains(err.Error(), "no answer within 50ms") {
		t.Errorf("%v", err)
	}
}
