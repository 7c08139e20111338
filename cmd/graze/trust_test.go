package main

import (
	"strings"
	"testing"

	"graze/image/imagetest"
)

// TestIndexOfAnotherRepository pushes one image to two repositories. Whoever can
// write to the one publishes an index there, which must not decide what is seen
// of the image in the other one, neither as an index nor as a view.
func TestIndexOfAnotherRepository(t *testing.T) {
	reg := startRegistry(t)
	img := smallImage(t, imagetest.Gzip(6))
	one, other := reg.push(t, img, "one:1"), reg.push(t, img, "other:1")
	graze(t, "index", "--state", t.TempDir(), "--push", one)

	state := t.TempDir()
	graze(t, "ls", "--state", state, "--index", "require", one, "/etc")
	if out, code := grazeCode(t, "ls", "--state", state, "--index", "require", other, "/etc"); code != 1 || !strings.Contains(out, "graze index --push") {
		t.Errorf("image of a repository without an index: exit code %d\n%s", code, out)
	}

	// What is made here of the layer's own bytes serves both.
	graze(t, "ls", "--state", state, other, "/etc")
	third := reg.push(t, img, "third:1")
	graze(t, "ls", "--state", state, "--index", "require", third, "/etc")
}
