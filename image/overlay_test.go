package image

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// TestMergeOverlayfs has the kernel's overlayfs lay random layers over each
// other and compares what it shows with the view.
func TestMergeOverlayfs(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting overlayfs needs root")
	}
	good := 0
	for seed := range uint64(400) {
		layers := randomLayers(rand.New(rand.NewPCG(seed, 2)))
		if _, err := modelMerge(layers, nil); err != nil || len(layers) < 2 {
			continue
		}
		root := t.TempDir()
		var lower []string
		opaqueRoot := false // of which overlayfs takes no notice
		var list []*Layer
		_, err := modelMerge(layers, func(upper modelFS, hidden map[string]bool) {
			dir := filepath.Join(root, strconv.Itoa(len(lower)))
			if err := upper.unpack(dir, hidden); err != nil {
				t.Fatal(err)
			}
			lower = append(lower, dir)
			opaqueRoot = opaqueRoot || upper["/"].opaque
			list = append(list, layer(layers[len(list)]...))
		})
		if err != nil {
			t.Fatal(err)
		}
		if opaqueRoot {
			continue
		}
		good++
		v, err := buildView(list...)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(overlayfs(t, lower), short(v)); diff != "" {
			t.Fatalf("seed %d: view differs (-overlayfs +view):\n%s\n%s", seed, diff, show(layers))
		}
	}
	t.Logf("compared %d images", good)
}

// unpack makes the files of m in a new directory, with the whiteouts and opaque
// directories in the form that overlayfs has for them.
func (m modelFS) unpack(dir string, hidden map[string]bool) error {
	first := make(map[*modelInode]string)
	for _, name := range m.walk("/") {
		n, file := m[name], filepath.Join(dir, name)
		var err error
		switch typ := n.Mode & syscall.S_IFMT; {
		case n.isDir():
			if err = os.Mkdir(file, 0); err == nil && (n.opaque || hidden[name]) {
				err = unix.Setxattr(file, "trusted.overlay.opaque", []byte("y"), 0)
			}
		case first[n] != "":
			err = os.Link(first[n], file)
		case typ == syscall.S_IFLNK:
			err = os.Symlink(n.Link, file)
		default:
			if err = os.WriteFile(file, nil, 0o600); err == nil {
				err = os.Truncate(file, n.Size)
			}
		}
		if err == nil && n.Mode&syscall.S_IFMT != syscall.S_IFLNK {
			err = unix.Chmod(file, n.Mode&0o7777)
		}
		if err != nil {
			return fmt.Errorf("unpack %s: %w", name, err)
		}
		first[n] = file
	}
	for name := range maps.Keys(hidden) {
		if m[name] == nil && m[path.Dir(name)].isDir() {
			if err := unix.Mknod(filepath.Join(dir, name), syscall.S_IFCHR, 0); err != nil {
				return fmt.Errorf("whiteout %s: %w", name, err)
			}
		}
	}
	return nil
}

// overlayfs mounts the directories over each other, the lowest first, and
// returns what is to be seen there.
func overlayfs(t *testing.T, lower []string) string {
	t.Helper()
	slices.Reverse(lower)
	at := filepath.Join(t.TempDir(), "merged")
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	err := unix.Mount("overlay", at, "overlay", unix.MS_RDONLY, "lowerdir="+strings.Join(lower, ":"))
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) {
		t.Skipf("overlayfs can't be mounted here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Error(err)
		}
	}()
	var lines []string
	err = filepath.WalkDir(at, func(file string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(file, &st)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a whiteout where there is nothing below, which overlayfs lists
		}
		if err != nil {
			return err
		}
		size, target := st.Size, ""
		switch st.Mode & syscall.S_IFMT {
		case syscall.S_IFDIR:
			size = 0
		case syscall.S_IFLNK:
			target, err = os.Readlink(file)
		}
		lines = append(lines, fmt.Sprintf("%s %#o %d %q", path.Join("/", strings.TrimPrefix(file, at)), st.Mode, size, target))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

// short describes a view as overlayfs does.
func short(v *View) string {
	var lines []string
	var walk func(ino uint64, name string)
	walk = func(ino uint64, name string) {
		a, _ := v.Attr(ino)
		target, _ := v.Readlink(ino)
		if a.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			a.Size = 0
		}
		lines = append(lines, fmt.Sprintf("%s %#o %d %q", name, a.Mode, a.Size, target))
		for _, d := range v.ReadDir(ino, 0) {
			walk(d.Ino, path.Join(name, d.Name))
		}
	}
	walk(RootIno, "/")
	return strings.Join(lines, "\n")
}
