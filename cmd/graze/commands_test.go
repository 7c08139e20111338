package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"graze/image/imagetest"
	"graze/node"
)

// smallImage is an image of two layers with a few files, in one encoding.
func smallImage(t testing.TB, e imagetest.Encoding) *imagetest.Image {
	t.Helper()
	layers := []imagetest.Layer{
		{Name: "base", Members: imagetest.Members(
			imagetest.Dir("etc/"),
			imagetest.File("etc/motd", []byte("hello\n")),
			imagetest.File("etc/gone", []byte("gone\n")),
			imagetest.Symlink("etc/link", "motd"),
			imagetest.Dir("big/"),
			imagetest.File("big/random", imagetest.Random(1, 5<<20)),
		)},
		{Name: "top", Members: imagetest.Members(
			imagetest.Dir("etc/"),
			imagetest.Whiteout("etc/", "gone"),
			imagetest.File("etc/strange\nname", []byte("x")),
		)},
	}
	img, err := imagetest.Build(layers, e)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func TestLsAndCat(t *testing.T) {
	reg := startRegistry(t)
	ref := reg.push(t, smallImage(t, imagetest.Gzip(6)), "small:1")
	state := t.TempDir()

	out := graze(t, "ls", "--state", state, ref, "/etc")
	for _, want := range []string{"-rw-r--r-- 1 0 0 6 ", "motd\n", "lrwxrwxrwx", "link -> motd", `"strange\nname"`} {
		if !strings.Contains(out, want) {
			t.Errorf("ls prints no %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "gone") {
		t.Errorf("ls prints a file that a layer removes:\n%s", out)
	}

	var entry listing
	line := graze(t, "ls", "--state", state, "--json", ref, "etc/motd")
	if err := json.Unmarshal([]byte(line), &entry); err != nil {
		t.Fatal(err)
	}
	if entry.Name != "/etc/motd" || entry.Size != 6 || entry.Mode != "-rw-r--r--" || !entry.MTime.Equal(imagetest.Epoch) {
		t.Errorf("ls --json of a file: %+v", entry)
	}

	if out := graze(t, "cat", "--state", state, ref, "etc/link"); out != "hello\n" {
		t.Errorf("cat prints %q", out)
	}
	if out := graze(t, "cat", "--state", state, ref, "big/random"); out != string(imagetest.Random(1, 5<<20)) {
		t.Errorf("cat of a large file prints other bytes")
	}
}

// TestErrors calls the command in ways that can't work. Each must say what is
// wrong and what to do.
func TestErrors(t *testing.T) {
	reg := startRegistry(t)
	ref := reg.push(t, smallImage(t, imagetest.Gzip(6)), "small:1")
	state := t.TempDir()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"no such command", []string{"munt"}, 2, "unknown command"},
		{"too few arguments", []string{"mount", ref}, 2, "accepts 2 arg(s), received 1"},
		{"unknown flag", []string{"ls", "--nope", ref}, 2, "unknown flag: --nope"},
		{"bad mode", []string{"mount", "--index", "maybe", ref, "/mnt"}, 2, "build or require"},
		{"bad platform", []string{"ls", "--platform", "a/b/c/d", ref}, 2, "--platform"},
		{"bad size", []string{"mount", "--store-limit", "many", ref, "/mnt"}, 2, "is no size"},
		{"no such folder of hosts", []string{"ls", "--hosts-dir", "/nowhere", ref}, 1, "/nowhere"},
		{"bad reference", []string{"ls", "UPPER//x"}, 1, "UPPER//x"},
		{"no such image", []string{"ls", reg.addr + "/nothing:1"}, 1, "404 Not Found"},
		{"other platform", []string{"ls", "--platform", "linux/riscv64", ref}, 1, "riscv64"},
		{"no index", []string{"ls", "--index", "require", ref}, 1, "graze index --push"},
		{"no such path", []string{"ls", ref, "/nowhere"}, 1, "nowhere"},
		{"cat of a folder", []string{"cat", ref, "/etc"}, 1, "not a regular file"},
		{"nothing runs", []string{"stats"}, 1, "graze mount"},
		{"not mounted", []string{"umount", t.TempDir()}, 1, "mount"},
		{"mount on a file", []string{"mount", ref, file}, 1, file},
		{"mount on nothing", []string{"mount", ref, file + "/nowhere"}, 1, "nowhere"},
		{"state is a file", []string{"ls", "--state", file, ref}, 1, file},
	} {
		t.Run(row.name, func(t *testing.T) {
			if row.args[0] == "mount" && row.code == 1 {
				needFUSE(t)
			}
			args := row.args
			if !strings.Contains(strings.Join(args, " "), "--state") && args[0] != "munt" {
				args = append([]string{args[0], "--state", state}, args[1:]...)
			}
			out, code := grazeCode(t, args...)
			if code != row.code || !strings.Contains(out, row.want) {
				t.Errorf("exit code %d, want %d; output has no %q:\n%s", code, row.code, row.want, out)
			}
		})
	}
}

// TestIndexOnce indexes two images that share a layer: the layer is read once.
func TestIndexOnce(t *testing.T) {
	reg := startRegistry(t)
	img := smallImage(t, imagetest.Gzip(6))
	first := reg.push(t, img, "first:1")
	base, err := imagetest.NewImage(img.Layers[:1])
	if err != nil {
		t.Fatal(err)
	}
	second := reg.push(t, base, "second:1")
	state := t.TempDir()

	var r indexResult
	if err := json.Unmarshal([]byte(graze(t, "index", "--state", state, "--json", "--push", first)), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Layers) != 2 || r.Pushed == "" || r.Layers[0].Format != "targz" || r.Layers[0].Tree == 0 {
		t.Errorf("index --json prints %+v", r)
	}
	before := reg.blobBytes(t)
	graze(t, "index", "--state", state, "--push", second)
	after := reg.blobBytes(t)
	if got, layer := after.Bytes-before.Bytes, img.Layers[0].Size; got >= layer {
		t.Errorf("%d bytes were read to index a layer again that has %d", got, layer)
	}

	// The published indexes serve a node that has nothing.
	out := graze(t, "ls", "--state", t.TempDir(), "--index", "require", second, "/etc")
	if !strings.Contains(out, "gone") {
		t.Errorf("ls prints no file of the second image:\n%s", out)
	}
}

// TestIndexLayout writes an index as an OCI layout, which other tools can read.
func TestIndexLayout(t *testing.T) {
	needTools(t, "skopeo")
	reg := startRegistry(t)
	ref := reg.push(t, smallImage(t, imagetest.Zstd()), "small:1")
	dir := filepath.Join(t.TempDir(), "layout")
	graze(t, "index", "--state", t.TempDir(), "-o", dir, ref)
	raw, err := exec.Command("skopeo", "inspect", "--raw", "oci:"+dir).Output()
	if err != nil {
		t.Fatal("skopeo: ", err)
	}
	var m struct {
		ArtifactType string
		Subject      struct{ Digest string }
		Layers       []struct {
			MediaType, Digest string
			Size              int64
		}
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	if m.ArtifactType != "application/vnd.graze.index.v1" || m.Subject.Digest == "" || len(m.Layers) == 0 {
		t.Errorf("the artifact's manifest is %s", raw)
	}
	for _, l := range m.Layers {
		st, err := os.Stat(filepath.Join(dir, "blobs", strings.Replace(l.Digest, ":", "/", 1)))
		if err != nil || st.Size() != l.Size {
			t.Errorf("blob %s of the layout: %v", l.Digest, err)
		}
	}
	if out, code := grazeCode(t, "index", "--state", t.TempDir(), "-o", dir, ref); code != 1 || !strings.Contains(out, "another folder") {
		t.Errorf("a layout was written over another: exit code %d\n%s", code, out)
	}
}

// TestStatsAndVerify reads through a mount and compares what stats says with
// what the registry has counted; then it damages the store.
func TestStatsAndVerify(t *testing.T) {
	needFUSE(t)
	reg := startRegistry(t)
	ref := reg.push(t, smallImage(t, imagetest.Gzip(6)), "small:1")
	graze(t, "index", "--state", t.TempDir(), "--push", ref)
	state := t.TempDir()
	m := mount(t, ref, "--state", state, "--index", "require")
	before := reg.blobBytes(t)
	read := func() {
		t.Helper()
		p, err := os.ReadFile(filepath.Join(m.dir, "big/random"))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(p, imagetest.Random(1, 5<<20)) {
			t.Error("the file has other bytes than the image")
		}
	}
	read()
	after := reg.blobBytes(t)

	var s node.Stats
	if err := json.Unmarshal([]byte(graze(t, "stats", "--state", state, "--json")), &s); err != nil {
		t.Fatal(err)
	}
	if len(s.Mounts) != 1 || s.Mounts[0].Reference != ref || s.Mounts[0].ReadBytes < 5<<20 || s.Mounts[0].Errors != 0 {
		t.Errorf("stats of the mount: %+v", s.Mounts)
	}
	if len(s.Sources) != 1 || s.Sources[0].Name != reg.addr {
		t.Fatalf("stats of the sources: %+v", s.Sources)
	}
	if got, least := s.Sources[0].Bytes, after.Bytes-before.Bytes; got < least {
		t.Errorf("stats says %d bytes came from the registry, which counted %d for the file alone", got, least)
	}
	if s.Reads.Misses == 0 || s.Store.Chunks == 0 || s.Store.Bytes < 5<<20 {
		t.Errorf("stats of reads and store: %+v %+v", s.Reads, s.Store)
	}
	if out := graze(t, "stats", "--state", state); !strings.Contains(out, m.dir) || !strings.Contains(out, reg.addr) {
		t.Errorf("stats prints\n%s", out)
	}
	if out := graze(t, "verify", "--state", state); !strings.Contains(out, "0 were corrupt") {
		t.Errorf("verify of a good store, with a mount running, prints\n%s", out)
	}

	damage(t, state)
	out, code := grazeCode(t, "verify", "--state", state)
	if code != 1 || !strings.Contains(out, "corrupt: sha256:") {
		t.Errorf("verify of a damaged store: exit code %d\n%s", code, out)
	}
	dropPageCache(t, filepath.Join(m.dir, "big/random"))
	read()
	m.stop(t)
	if out := graze(t, "verify", "--state", state); !strings.Contains(out, "0 were corrupt") {
		t.Errorf("verify after the damage was made good, with no mount, prints\n%s", out)
	}
}

// TestRotUnderMount damages the store under a running mount: readers get the
// right bytes, the chunks are fetched again, and the rot is counted.
func TestRotUnderMount(t *testing.T) {
	needFUSE(t)
	reg := startRegistry(t)
	ref := reg.push(t, smallImage(t, imagetest.Gzip(6)), "small:1")
	state := t.TempDir()
	m := mount(t, ref, "--state", state)
	name := filepath.Join(m.dir, "big/random")
	for range 2 {
		p, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(p, imagetest.Random(1, 5<<20)) {
			t.Fatal("the file has other bytes than the image")
		}
		damage(t, state)
		dropPageCache(t, name)
	}
	var s node.Stats
	if err := json.Unmarshal([]byte(graze(t, "stats", "--state", state, "--json")), &s); err != nil {
		t.Fatal(err)
	}
	if s.Store.Corrupt == 0 || s.Mounts[0].Errors != 0 {
		t.Errorf("%d chunks were found to be corrupt, and %d reads failed", s.Store.Corrupt, s.Mounts[0].Errors)
	}
}

// damage flips bytes all over the store's segments.
func damage(t testing.TB, state string) {
	t.Helper()
	segments, err := filepath.Glob(filepath.Join(state, "chunks", "*.seg"))
	if err != nil || len(segments) == 0 {
		t.Fatalf("the store has no segments: %v", err)
	}
	for _, name := range segments {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		st, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1)
		for off := int64(300_000); off < st.Size(); off += 1_000_003 {
			if _, err := f.ReadAt(b, off); err != nil {
				t.Fatal(err)
			}
			b[0] ^= 0x40
			if _, err := f.WriteAt(b, off); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// dropPageCache makes the kernel forget what it has read of a file.
func dropPageCache(t testing.TB, name string) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
}

// TestUmount ends a mount from outside, and finds a state folder in use.
func TestUmount(t *testing.T) {
	needFUSE(t)
	reg := startRegistry(t)
	ref := reg.push(t, smallImage(t, imagetest.Plain()), "small:1")
	state := t.TempDir()
	m := mount(t, ref, "--state", state)

	if _, err := tryMount(t, ref, "--state", state); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("in use by process %d", m.cmd.Process.Pid)) {
		t.Errorf("a second mount on the same state folder: %v", err)
	}
	f, err := os.Open(filepath.Join(m.dir, "big/random"))
	if err != nil {
		t.Fatal(err)
	}
	if out, code := grazeCode(t, "umount", m.dir); code != 1 || !strings.Contains(out, "in use") {
		t.Errorf("unmount of a mount in use: exit code %d\n%s", code, out)
	}
	f.Close()
	graze(t, "umount", m.dir)
	if err := <-m.exited; err != nil {
		t.Errorf("graze mount, after it was unmounted: %v\n%s", err, m.stderr)
	}
}

// TestKilledMount kills a mount's process and mounts the same image again: all
// that was read is there, and the registry is not asked for anything.
func TestKilledMount(t *testing.T) {
	needFUSE(t)
	reg := startRegistry(t)
	img := smallImage(t, imagetest.Gzip(6))
	reg.push(t, img, "small:1")
	ref := reg.addr + "/small@" + img.Digest()
	state := t.TempDir()
	m := mount(t, ref, "--state", state)
	if _, err := os.ReadFile(filepath.Join(m.dir, "big/random")); err != nil {
		t.Fatal(err)
	}
	m.kill()
	before := reg.requests(t)
	again := mount(t, ref, "--state", state, "--index", "require")
	p, err := os.ReadFile(filepath.Join(again.dir, "big/random"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(p, imagetest.Random(1, 5<<20)) {
		t.Error("the file has other bytes than the image")
	}
	if after := reg.requests(t); after != before {
		t.Errorf("the registry was asked again: %d requests", after-before)
	}
}

func TestByteSize(t *testing.T) {
	for _, row := range []struct {
		in   string
		want int64
	}{
		{"1", 1}, {"1048576", 1 << 20}, {"1K", 1 << 10}, {"1KiB", 1 << 10}, {"20GiB", 20 << 30},
		{"1.5m", 3 << 19}, {"2TB", 2 << 40}, {"0", -1}, {"-1", -1}, {"", -1}, {"x", -1}, {"1Q", -1}, {"1GiBB", -1}, {"1IK", -1}, {"512 B", 512}, {"99999999999999999999", -1}, {"NaN", -1},
	} {
		var b byteSize
		err := b.Set(row.in)
		if (err != nil) != (row.want < 0) || err == nil && int64(b) != row.want {
			t.Errorf("%q: %d, %v", row.in, int64(b), err)
		}
	}
}
