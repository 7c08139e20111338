package image

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A modelFS is a file system as a map from absolute paths to inodes: slow, and
// simple enough to be right.
type modelFS map[string]*modelInode

type modelInode struct {
	Entry
	opaque bool
}

func (n *modelInode) isDir() bool { return n != nil && n.Mode&syscall.S_IFMT == syscall.S_IFDIR }

// below reports whether name is below dir.
func below(name, dir string) bool {
	return strings.HasPrefix(name, strings.TrimSuffix(dir, "/")+"/") && name != "/"
}

// remove takes out a name and all that is below it.
func (m modelFS) remove(name string) {
	maps.DeleteFunc(m, func(k string, _ *modelInode) bool { return k == name || below(k, name) })
}

// real returns the path without symbolic links that dir leads to.
func (m modelFS) real(dir string) (string, error) {
	for range MaxLinks + 1 {
		parts := strings.Split(dir, "/")
		replaced := false
		for i := 2; i <= len(parts) && !replaced; i++ {
			prefix := strings.Join(parts[:i], "/")
			n := m[prefix]
			if n == nil || n.isDir() {
				continue
			}
			if n.Mode&syscall.S_IFMT != syscall.S_IFLNK {
				return "", fmt.Errorf("%s is not a directory", prefix)
			}
			target := path.Clean(n.Link)
			if !path.IsAbs(target) {
				target = path.Join(path.Dir(prefix), target)
			}
			dir = path.Join("/", target, strings.Join(parts[i:], "/"))
			replaced = true
		}
		if !replaced {
			return dir, nil
		}
	}
	return "", ErrManyLinks
}

// modelMerge lays layers over each other. It calls each with what every layer
// unpacks to and with the names that it hides, unless it is nil.
func modelMerge(layers [][]*Entry, each func(upper modelFS, hidden map[string]bool)) (modelFS, error) {
	base := modelFS{"/": {Entry: Entry{Mode: syscall.S_IFDIR | 0o755}}}
	for _, entries := range layers {
		upper, hidden, err := modelApply(base, entries)
		if err != nil {
			return nil, err
		}
		if each != nil {
			each(upper, hidden)
		}
		for _, name := range slices.Sorted(maps.Keys(hidden)) {
			base.remove(name)
		}
		for _, name := range slices.Sorted(maps.Keys(upper)) {
			n := upper[name]
			if n.opaque {
				maps.DeleteFunc(base, func(k string, _ *modelInode) bool { return below(k, name) })
			}
			if !n.isDir() || !base[name].isDir() {
				base.remove(name)
			}
			base[name] = n
		}
	}
	return base, nil
}

// modelApply unpacks the entries of one layer. It returns the file system that
// they make and the names that they hide.
func modelApply(base modelFS, entries []*Entry) (upper modelFS, hidden map[string]bool, err error) {
	root := *base["/"]
	root.opaque = false
	upper = modelFS{"/": &root}
	hidden = make(map[string]bool)
	remove := func(name string) {
		upper.remove(name)
		maps.DeleteFunc(hidden, func(k string, _ bool) bool { return below(k, name) })
	}
	for _, e := range entries {
		name := path.Clean("/" + e.Name)
		if name == "/" {
			continue
		}
		dir, err := upper.real(path.Dir(name))
		if err != nil {
			return nil, nil, err
		}
		upper.mkdirs(base, hidden, dir)
		name = path.Join(dir, path.Base(name))
		switch of, ok := strings.CutPrefix(path.Base(name), whiteout); {
		case path.Base(name) == opaque:
			upper[dir].opaque = true
			continue
		case ok:
			hidden[path.Join(dir, of)] = true
			continue
		}
		old := upper[name]
		n := &modelInode{Entry: *e}
		if !e.Hardlink && n.Mode&syscall.S_IFMT == syscall.S_IFCHR {
			remove(name)
			hidden[name] = true
			continue
		}
		if old.isDir() && !e.Hardlink && n.isDir() {
			n.opaque = old.opaque
			upper[name] = n
			continue
		}
		remove(name)
		if e.Hardlink {
			target := path.Clean("/" + e.Link)
			dir, err := upper.real(path.Dir(target))
			if err != nil {
				return nil, nil, err
			}
			if n = upper[path.Join(dir, path.Base(target))]; n == nil {
				if dir, err = base.real(path.Dir(target)); err != nil {
					return nil, nil, err
				}
				n = base[path.Join(dir, path.Base(target))]
			}
			if n == nil || n.isDir() || name == path.Join(dir, path.Base(target)) {
				return nil, nil, fmt.Errorf("bad link %s", e.Link)
			}
		}
		upper[name] = n
	}
	return upper, hidden, nil
}

// mkdirs makes the directory dir and its parents, as far as they are missing.
func (m modelFS) mkdirs(base modelFS, hidden map[string]bool, dir string) {
	if m[dir] != nil {
		return
	}
	m.mkdirs(base, hidden, path.Dir(dir))
	n := &modelInode{Entry: Entry{Mode: syscall.S_IFDIR | 0o755}}
	concealed := false
	for d := dir; d != "/"; d = path.Dir(d) {
		concealed = concealed || hidden[d]
	}
	if real, err := base.real(dir); err == nil && base[real].isDir() && !concealed {
		n.Entry = base[real].Entry
	}
	m[dir] = n
}

// dump describes a modelFS as dump does a View.
func (m modelFS) dump() string {
	var lines []string
	count := make(map[*modelInode]uint32)
	for _, n := range m {
		count[n]++
	}
	first := make(map[*modelInode]string)
	for _, name := range m.walk("/") {
		n := m[name]
		line := fmt.Sprintf("%s %s%o", name, kinds[n.Mode&syscall.S_IFMT], n.Mode&0o7777)
		switch n.Mode & syscall.S_IFMT {
		case syscall.S_IFREG:
			line += fmt.Sprintf(" %d", n.Size)
		case syscall.S_IFLNK:
			line += " -> " + n.Link
		}
		if count[n] > 1 {
			line += fmt.Sprintf(" nlink=%d", count[n])
		}
		if first[n] != "" {
			line += " same=" + first[n]
		} else {
			first[n] = name
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// walk returns the paths from dir on, each directory's in the order of names.
func (m modelFS) walk(dir string) []string {
	out := []string{dir}
	var children []string
	for name := range m {
		if path.Dir(name) == dir && name != "/" {
			children = append(children, name)
		}
	}
	slices.Sort(children)
	for _, c := range children {
		out = append(out, m.walk(c)...)
	}
	return out
}

// randomLayers returns layers whose few names make for many collisions.
func randomLayers(rnd *rand.Rand) [][]*Entry {
	name := func() string {
		parts := make([]string, 1+rnd.IntN(3))
		for i := range parts {
			parts[i] = string("abcd"[rnd.IntN(4)])
		}
		return strings.Join(parts, "/")
	}
	layers := make([][]*Entry, 1+rnd.IntN(4))
	size := int64(0)
	for i := range layers {
		for range rnd.IntN(12) {
			var e *Entry
			switch n := name(); rnd.IntN(11) {
			case 0, 1, 2:
				size++
				e = file(n, size)
			case 3, 4:
				e = dir(n, 0o700|uint32(rnd.IntN(64)))
			case 5:
				e = symlink(n, []string{"", "/", "../"}[rnd.IntN(3)]+name())
			case 6:
				e = hardlink(n, name())
			case 7, 8:
				e = hidden(n)
			case 9:
				e = opaqueDir(n)
			case 10:
				e = char(n, 0, 0)
			}
			layers[i] = append(layers[i], e)
		}
	}
	return layers
}

func show(layers [][]*Entry) string {
	var b strings.Builder
	for i, entries := range layers {
		fmt.Fprintf(&b, "layer %d\n", i)
		for _, e := range entries {
			fmt.Fprintf(&b, "  %s %#o size=%d link=%q hard=%v\n", e.Name, e.Mode, e.Size, e.Link, e.Hardlink)
		}
	}
	return b.String()
}

// TestMergeModel compares the merge of random layers with the model's. Errors
// have to occur in the same cases.
func TestMergeModel(t *testing.T) {
	good := 0
	for seed := range uint64(3000) {
		layers := randomLayers(rand.New(rand.NewPCG(seed, 1)))
		model, wantErr := modelMerge(layers, nil)
		var list []*Layer
		for _, entries := range layers {
			list = append(list, layer(entries...))
		}
		v, err := buildView(list...)
		if (err != nil) != (wantErr != nil) {
			t.Fatalf("seed %d: error %v, want %v\n%s", seed, err, wantErr, show(layers))
		}
		if err != nil {
			continue
		}
		good++
		if diff := cmp.Diff(model.dump(), dump(v)); diff != "" {
			t.Fatalf("seed %d: view differs (-want +got):\n%s\n%s", seed, diff, show(layers))
		}
	}
	if good < 500 {
		t.Errorf("only %d cases without an error", good)
	}
}
