package imagetest

import (
	"archive/tar"
	"slices"
	"strings"
	"time"
)

// A Fate is what becomes of a hostile image in containerd.
type Fate string

// The fates.
const (
	// Refused: unpacking fails, whichever way.
	Refused Fate = "refused"
	// Differs: the layers unpack to one tree when they are applied to one
	// directory, and to another one, or not at all, when each is unpacked into
	// a directory of its own for overlayfs, as containerd does by default.
	Differs Fate = "differs"
	// Unstable: the layers unpack, but the modification times of the directories
	// in Case.Unstable become the time of unpacking.
	Unstable Fate = "unstable"
	// Unpacks: the layers unpack to one certain tree, but no builder of images
	// writes them.
	Unpacks Fate = "unpacks"
)

// A Case is a hostile image.
type Case struct {
	Name   string
	Why    string // what containerd does, and why
	Fate   Fate
	Layers []Layer
	// Unstable has the directories with unstable modification times.
	Unstable []string
}

// Hostile returns images for which containerd isn't a model to follow: it
// refuses them, its result depends on how and when it unpacks, or the archives
// are such that only an attacker or a fault makes them. A reader may refuse them
// or show some tree, but must not fail in any other way.
func Hostile() []Case {
	return slices.Concat(hostileLinks(), hostileMembers(), hostileArchives(), hostileLayers())
}

// one returns a case of one layer.
func one(name, why string, fate Fate, members ...Member) Case {
	return Case{Name: name, Why: why, Fate: fate, Layers: []Layer{{Name: name, Members: Members(members...)}}}
}

func hostileLinks() []Case {
	return []Case{
		one("hard link before its target", "the target doesn't exist yet", Refused,
			Dir("a/"), Link("a/link", "target"), File("target", []byte("x"))),
		one("hard link to nothing", "there is no target", Refused, Link("a", "b")),
		one("hard link to itself", "there is no target", Refused, Link("a", "a")),
		one("hard links in a circle", "there is no target", Refused, Link("a", "b"), Link("b", "a")),
		one("hard link to a directory", "link(2) refuses", Refused, Dir("a/"), Link("b", "a")),
		one("hard link with attributes of its own", "a link's header applies to its target", Unpacks,
			File("a", []byte("x")).Mode(0o600), Link("b", "a").Mode(0o755).Owner(5, 6).MTime(time.Unix(1e9, 0))),
		one("hard link, then its target again", "the link keeps the first file", Unpacks,
			File("a", []byte("first")), Link("b", "a"), File("a", []byte("second"))),
		one("hard link through a symlink", "the target's directory is resolved; readers of eStargz don't", Unpacks,
			Dir("dir/"), File("dir/a", []byte("x")), Symlink("link", "dir"), Link("b", "link/a")),
		one("hard link out of the root", "the target's directory is taken relative to the root", Refused,
			Link("a", "../../../../../../etc/passwd")),
	}
}

func hostileMembers() []Case {
	return []Case{
		one("old GNU sparse file", "the type is unknown to containerd", Refused,
			sparseGNU("a", 1<<20, manyFragments(30))),
		one("contiguous file", "the type is unknown to containerd", Refused,
			Member{Header: tar.Header{Typeflag: tar.TypeCont, Name: "a", Mode: 0o644, ModTime: Epoch}}),
		one("name too long", "the file system refuses it", Refused, File(strings.Repeat("n", 256), nil)),
		one("path too long", "the kernel refuses it", Refused, File(strings.Repeat("long/", 1000)+"x", nil)),
		one("file as a directory", "the parent is a file", Refused, File("a", nil), File("a/b", nil)),
		one("device out of range", "numbers of more than 32 bits", Refused,
			Special(tar.TypeChar, "a", 1<<33, 0).Format(tar.FormatGNU)),
		one("whiteout of the directory itself", "a whiteout must name a child", Refused, Dir("a/"), Whiteout("a/", ".")),
		one("whiteout of the parent", "a whiteout must name a child", Refused, Dir("a/"), Whiteout("a/", "..")),
		one("whiteout of no name", "a whiteout must name a child", Refused, Dir("a/"), Whiteout("a/", "")),
		one("file, then its whiteout", "for overlayfs, the whiteout's device finds the file in its place", Differs,
			File("a", nil), Whiteout("", "a")),
		one("device that is a whiteout", "overlayfs takes it for its own whiteout", Differs, Special(tar.TypeChar, "a", 0, 0)),
		one("path out of the root", "it is taken relative to the root", Unpacks, File("../../../../escape", []byte("x"))),
		one("absolute symlink as a parent", "it is resolved within the root, where the directory is made", Unstable,
			Symlink("link", "/made"), File("link/a", []byte("x"))).unstable("made"),
		one("symlink out of the root as a parent", "it is resolved within the root, where the directory is made", Unstable,
			Symlink("link", "../../../../made"), File("link/a", []byte("x"))).unstable("made"),
		one("implied parents", "they are made when they are needed", Unstable,
			File("a/b/c", []byte("x")), Opaque("d/"), Dir("e/f/")).unstable("a", "a/b", "d", "e"),
	}
}

func hostileArchives() []Case {
	short := rawHeader{name: "a", kind: '0', size: 5000, magic: ustarMagic}.bytes()
	sum := rawHeader{name: "a", kind: '0', magic: ustarMagic}.bytes()
	sum[148] ^= 1
	cut := one("archive cut short", "it isn't complete", Refused, Member{Raw: short})
	cut.Layers[0].Unended = true
	return []Case{
		cut,
		one("no archive", "it isn't one", Refused, Member{Raw: Random(1, 1024)}),
		one("wrong checksum", "the header isn't one", Refused, File("a", nil), Member{Raw: sum}),
	}
}

// hostileLayers has what it takes several layers for.
func hostileLayers() []Case {
	return []Case{
		{
			Name: "hard link into the layer below", Fate: Differs,
			Why:    "for overlayfs, the layer's directory doesn't have the target",
			Layers: []Layer{{Name: "below", Members: Members(File("a", []byte("x")))}, {Name: "above", Members: Members(Link("b", "a"))}},
		},
		{
			Name: "whiteout of a directory, then the directory", Fate: Differs,
			Why: "for overlayfs, the directory takes the place of the whiteout and merges with the one below",
			Layers: []Layer{
				{Name: "below", Members: Members(Dir("a/"), File("a/below", nil))},
				{Name: "above", Members: Members(Whiteout("", "a"), Dir("a/"), File("a/above", nil))},
			},
		},
		{
			Name: "directory again, without an attribute", Fate: Differs,
			Why: "in one directory the attribute stays; for overlayfs only the upper entry counts",
			Layers: []Layer{
				{Name: "below", Members: Members(Dir("a/").Xattr("user.below", "1"))},
				{Name: "above", Members: Members(Dir("a/"))},
			},
		},
		{
			Name: "change in a directory without an entry", Fate: Unstable, Unstable: []string{"a"},
			Why: "the directory's time changes with what is in it",
			Layers: []Layer{
				{Name: "below", Members: Members(Dir("a/").Mode(0o700).Owner(1, 2))},
				{Name: "above", Members: Members(File("a/b", nil))},
			},
		},
	}
}

func (c Case) unstable(paths ...string) Case {
	c.Unstable = paths
	return c
}

// manyFragments returns n fragments with holes around them.
func manyFragments(n int) []fragment {
	list := make([]fragment, n)
	for i := range list {
		list[i] = fragment{off: int64(i*10000 + 512), data: Random(uint64(i), 512)}
	}
	return list
}
