package image

import (
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMerge(t *testing.T) {
	long := strings.Repeat("x", 60)
	tests := []struct {
		name   string
		layers []*Layer
		want   string
	}{
		{"no layers", nil, "/ d755"},
		{"empty layer", []*Layer{layer()}, "/ d755"},

		// One layer.
		{"all kinds", []*Layer{layer(
			dir("d", 0o1777, owner(1, 2), mtime(3, 4)),
			file("d/f", 5, mode(syscall.S_IFREG|0o6755), mtime(7, 8)),
			symlink("l", "d/f", owner(9, 9)),
			char("c", 1, 3),
			char("b", 8, 1, mode(syscall.S_IFBLK|0o660)),
			entry("p", syscall.S_IFIFO|0o600),
			entry("s", syscall.S_IFSOCK|0o600),
		)}, text(
			"/ d755",
			"/b b660 8:1",
			"/c c600 1:3",
			"/d d1777 owner=1:2 mtime=3.4",
			"/d/f f6755 5 mtime=7.8",
			"/l l777 -> d/f owner=9:9",
			"/p p600",
			"/s s600",
		)},
		{"names are cleaned", []*Layer{layer(
			file("./a", 1), file("/b", 2), file("../../c", 3), file("d//e/../f/", 4), file("x/../../g", 5),
		)}, text("/ d755", "/a f644 1", "/b f644 2", "/c f644 3", "/d d755", "/d/f f644 4", "/g f644 5")},
		{"names of any bytes", []*Layer{layer(file("\xff\xfe", 1), file("a\nb", 2))},
			text("/ d755", "/a\nb f644 2", "/\xff\xfe f644 1")},
		{"root keeps attributes of the snapshotter", []*Layer{layer(
			dir("./", 0o700, owner(5, 5), mtime(6, 7), xattr("user.a", "b")), file("", 3), symlink("/", "x"), hardlink("..", "y"),
		)}, "/ d755 mtime=6.7"},
		{"later file wins", []*Layer{layer(file("a", 1), file("a", 2))}, text("/ d755", "/a f644 2")},
		{"directory again", []*Layer{layer(
			dir("d", 0o700, xattr("user.a", "1"), xattr("user.b", "1")), file("d/f", 1),
			dir("d", 0o750, xattr("user.b", "2"), mtime(1, 0)),
		)}, text("/ d755", `/d d750 mtime=1.0 user.a="1" user.b="2"`, "/d/f f644 1")},
		{"file over directory", []*Layer{layer(file("d/e/f", 1), file("d", 2))}, text("/ d755", "/d f644 2")},
		{"directory over file", []*Layer{layer(file("d", 2), dir("d", 0o700), file("d/f", 1))},
			text("/ d755", "/d d700", "/d/f f644 1")},
		{"directory over directory removed in between", []*Layer{layer(
			file("d/old", 1), symlink("d", "x"), dir("d", 0o700), file("d/new", 2),
		)}, text("/ d755", "/d d700", "/d/new f644 2")},
		{"directory over symlink to directory", []*Layer{layer(
			dir("e", 0o700), symlink("d", "e"), dir("d", 0o711), file("d/f", 1),
		)}, text("/ d755", "/d d711", "/d/f f644 1", "/e d700")},
		{"symlink as parent", []*Layer{layer(
			symlink("a", "b/c"), file("a/f", 1), symlink("abs", "/b"), file("abs/g", 2),
			symlink("b/up", "../../../b/c"), file("b/up/h", 3),
		)}, text("/ d755", "/a l777 -> b/c", "/abs l777 -> /b", "/b d755", "/b/c d755", "/b/c/f f644 1",
			"/b/c/h f644 3", "/b/g f644 2", "/b/up l777 -> ../../../b/c")},
		{"symlink as parent is resolved part by part", []*Layer{layer(
			dir("x/y", 0o700), symlink("l", "x/y"), symlink("x/y/m", "../z"), file("l/m/f", 1),
		)}, text("/ d755", "/l l777 -> x/y", "/x d755", "/x/y d700", "/x/y/m l777 -> ../z", "/x/z d755", "/x/z/f f644 1")},
		{"symlink to its own directory's parent", []*Layer{layer(
			symlink("d/l", "missing/.."), file("d/l/f", 1),
		)}, text("/ d755", "/d d755", "/d/f f644 1", "/d/l l777 -> missing/..")},
		{"long symlink", []*Layer{layer(symlink("l", long))}, text("/ d755", "/l l777 -> "+long)},
		{"times that file systems can't keep", []*Layer{layer(
			file("a", 0, mtime(-1, 5)), file("b", 0, mtime(9223372036, 854775807)), file("c", 0, mtime(9223372036, 854775808)),
		)}, text("/ d755", "/a f644 0", "/b f644 0 mtime=9223372036.854775807", "/c f644 0")},
		{"xattrs that can be set", []*Layer{layer(
			file("f", 0, xattr("user.z", "1"), xattr("user.a", ""), xattr("user.z", "2"), xattr("trusted.x", "no"),
				xattr("security.capability", "\x01\x00"), xattr("foo.bar", "no"), xattr("plain", "no"), xattr("user.", "no"),
				xattr("system.posix_acl_access", "acl"), xattr("system.posix_acl_default", "no")),
			symlink("l", "x", xattr("user.a", "no"), xattr("security.b", "yes"), xattr("system.posix_acl_access", "no")),
			dir("d", 0o755, xattr("trusted.overlay.opaque", "y"), xattr("system.posix_acl_default", "acl")),
			entry("p", syscall.S_IFIFO|0o600, xattr("user.a", "no")),
		)}, text("/ d755",
			`/d d755 system.posix_acl_default="acl"`,
			`/f f644 0 security.capability="\x01\x00" system.posix_acl_access="acl" user.a="" user.z="2"`,
			`/l l777 -> x security.b="yes"`,
			"/p p600")},
		{"device numbers as mknod takes them", []*Layer{layer(char("c", 0x1fff, 0x1fffff))},
			text("/ d755", "/c c600 4095:1048575")},

		// Hard links.
		{"hard links", []*Layer{layer(
			file("a", 1, owner(1, 1)), hardlink("d/b", "/a"), hardlink("c", "./d/b"),
			symlink("l", "a"), hardlink("m", "l"), char("n", 1, 1), hardlink("o", "n"),
		)}, text("/ d755", "/a f644 1 nlink=3 owner=1:1", "/c f644 1 nlink=3 owner=1:1 same=/a", "/d d755",
			"/d/b f644 1 nlink=3 owner=1:1 same=/a", "/l l777 -> a nlink=2", "/m l777 -> a nlink=2 same=/l",
			"/n c600 1:1 nlink=2", "/o c600 1:1 nlink=2 same=/n")},
		{"hard link outlives its target", []*Layer{layer(file("a", 1), hardlink("b", "a"), file("a", 2))},
			text("/ d755", "/a f644 2", "/b f644 1")},
		{"hard link replaces", []*Layer{layer(file("a", 1), file("d/f", 2), hardlink("d", "a"))},
			text("/ d755", "/a f644 1 nlink=2", "/d f644 1 nlink=2 same=/a")},
		{"hard link through symlink in its target's path", []*Layer{layer(
			file("d/a", 1), symlink("l", "d"), hardlink("b", "l/a"),
		)}, text("/ d755", "/b f644 1 nlink=2", "/d d755", "/d/a f644 1 nlink=2 same=/b", "/l l777 -> d")},
		{"hard link into a lower layer", []*Layer{
			layer(file("d/a", 1), symlink("l", "d")),
			layer(hardlink("b", "d/a"), hardlink("c", "b")),
		}, text("/ d755", "/b f644 1 nlink=3", "/c f644 1 nlink=3 same=/b", "/d d755", "/d/a f644 1 nlink=3 same=/b", "/l l777 -> d")},
		{"hard link to what its own layer hides", []*Layer{
			layer(file("a", 1)), layer(hidden("a"), hardlink("b", "a")),
		}, text("/ d755", "/b f644 1")},
		{"one name of several hidden", []*Layer{
			layer(file("a", 1), hardlink("b", "a"), hardlink("c", "a")), layer(hidden("b")),
		}, text("/ d755", "/a f644 1 nlink=2", "/c f644 1 nlink=2 same=/a")},

		// Layers over each other.
		{"file over file", []*Layer{layer(file("a", 1, xattr("user.a", "1"))), layer(file("a", 2))},
			text("/ d755", "/a f644 2")},
		{"directory merges", []*Layer{
			layer(dir("d", 0o700, xattr("user.a", "1")), file("d/a", 1), file("d/b", 1)),
			layer(dir("d", 0o711, mtime(1, 1)), file("d/b", 2), file("d/c", 2)),
		}, text("/ d755", "/d d711 mtime=1.1", "/d/a f644 1", "/d/b f644 2", "/d/c f644 2")},
		{"parents are as below", []*Layer{
			layer(dir("d", 0o700, owner(3, 4), mtime(5, 6), xattr("user.a", "1")), dir("d/e", 0o711)),
			layer(file("d/e/f/g", 1)),
		}, text("/ d755", `/d d700 owner=3:4 mtime=5.6 user.a="1"`, "/d/e d711", "/d/e/f d755", "/d/e/f/g f644 1")},
		{"parents are as below, then named", []*Layer{
			layer(dir("d", 0o700, xattr("user.a", "1"))),
			layer(file("d/f", 1), dir("d", 0o711, xattr("user.b", "2"))),
		}, text("/ d755", `/d d711 user.a="1" user.b="2"`, "/d/f f644 1")},
		{"parent is a symlink below", []*Layer{
			layer(dir("usr/lib", 0o711), symlink("lib", "usr/lib")), layer(file("lib/f", 1)),
		}, text("/ d755", "/lib d711", "/lib/f f644 1", "/usr d755", "/usr/lib d711")},
		{"parent is a file below", []*Layer{layer(file("d", 1)), layer(file("d/f", 1))},
			text("/ d755", "/d d755", "/d/f f644 1")},
		{"file over directory below", []*Layer{layer(file("d/e/f", 1)), layer(file("d", 2))},
			text("/ d755", "/d f644 2")},
		{"directory over file below", []*Layer{layer(file("d", 1)), layer(dir("d", 0o700))},
			text("/ d755", "/d d700")},
		{"directory over file over directory", []*Layer{
			layer(file("d/old", 1)), layer(file("d", 1)), layer(file("d/new", 2)),
		}, text("/ d755", "/d d755", "/d/new f644 2")},
		{"root's time is the last that is named", []*Layer{layer(dir("/", 0o755, mtime(1, 0))), layer(file("a", 1))},
			text("/ d755 mtime=1.0", "/a f644 1")},

		// Whiteouts.
		{"whiteouts", []*Layer{
			layer(file("a", 1), file("d/e/f", 1), symlink("l", "x"), file("keep", 1)),
			layer(hidden("a"), hidden("d"), hidden("l"), hidden("missing"), hidden("new/missing")),
		}, text("/ d755", "/keep f644 1", "/new d755")},
		{"whiteout and file of its own layer", []*Layer{
			layer(file("a", 1), file("b", 1)),
			layer(hidden("a"), file("a", 2), file("b", 2), hidden("b")),
		}, text("/ d755", "/a f644 2", "/b f644 2")},
		{"whiteout and directory of its own layer", []*Layer{
			layer(file("a/old", 1), file("b/old", 1), dir("c", 0o700), file("c/old", 1)),
			layer(hidden("a"), dir("a", 0o711), file("a/new", 2), file("b/new", 2), hidden("b"), hidden("c"), file("c/new", 2)),
		}, text("/ d755", "/a d711", "/a/new f644 2", "/b d755", "/b/new f644 2", "/c d755", "/c/new f644 2")},
		{"whiteout through a symlink", []*Layer{
			layer(file("d/a", 1), file("d/b", 1)), layer(symlink("l", "d"), hidden("l/a")),
		}, text("/ d755", "/d d755", "/d/b f644 1", "/l l777 -> d")},
		{"whiteouts in the lowest layer", []*Layer{layer(file("d/a", 1), hidden("d/a"), opaqueDir("d"), hidden("d"), hidden("x/y"))},
			text("/ d755", "/d d755", "/d/a f644 1", "/x d755")},
		{"whiteout below a new directory", []*Layer{layer(), layer(dir("d", 0o700), hidden("d/a")), layer(file("d/b", 1))},
			text("/ d755", "/d d700", "/d/b f644 1")},
		{"file after whiteout", []*Layer{layer(file("a", 1)), layer(hidden("a")), layer(file("a", 3))},
			text("/ d755", "/a f644 3")},
		{"directory after whiteout", []*Layer{layer(dir("d", 0o700), file("d/old", 1)), layer(hidden("d")), layer(file("d/new", 3))},
			text("/ d755", "/d d755", "/d/new f644 3")},
		{"overlayfs's own whiteout", []*Layer{
			layer(file("a", 1), file("b/c", 1)), layer(char("a", 0, 0), char("b", 0, 0), file("x", 1), char("x", 0, 0)),
		}, "/ d755"},
		{"opaque directory", []*Layer{
			layer(dir("d", 0o700), file("d/a", 1), file("d/e/f", 1), file("g", 1)),
			layer(dir("d", 0o711), file("d/before", 2), opaqueDir("d"), file("d/e/after", 2)),
		}, text("/ d755", "/d d711", "/d/before f644 2", "/d/e d755", "/d/e/after f644 2", "/g f644 1")},
		{"opaque directory keeps attributes below", []*Layer{layer(dir("d", 0o700, owner(1, 1)), file("d/a", 1)), layer(opaqueDir("d"))},
			text("/ d755", "/d d700 owner=1:1")},
		{"opaque directory for layers above", []*Layer{layer(file("d/a", 1)), layer(opaqueDir("d"), file("d/b", 1)), layer(file("d/c", 1))},
			text("/ d755", "/d d755", "/d/b f644 1", "/d/c f644 1")},
		{"opaque root", []*Layer{layer(file("a", 1)), layer(file("b", 2), opaqueDir(""))}, text("/ d755", "/b f644 2")},
		{"opaque directory replaced", []*Layer{
			layer(file("d/a", 1)), layer(opaqueDir("d"), file("d", 1), file("e", 1)),
		}, text("/ d755", "/d f644 1", "/e f644 1")},
		{"metadata of aufs", []*Layer{layer(
			file(".wh..wh.aufs", 0), dir(".wh..wh.plnk", 0o700), file(".wh..wh.plnk/1.2", 7), hardlink("a", ".wh..wh.plnk/1.2"),
			dir(".wh..wh.orph", 0o700), file("d/.wh..wh.x", 1),
		)}, text("/ d755", "/a f644 7", "/d d755")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, dump(merged(t, tt.layers...))); diff != "" {
				t.Errorf("view differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMergeErrors(t *testing.T) {
	chunks := func(entries ...*Entry) *Layer { return withChunks(layer(entries...), "t", 100, 100) }
	deep := strings.Repeat("d/", MaxDepth)
	tests := []struct {
		name  string
		layer *Layer
		want  string
	}{
		{"file as parent", layer(file("a", 1), file("a/b", 1)), `entry "a/b": "a": not a directory`},
		{"symlink to a file as parent", layer(file("a", 1), symlink("l", "a"), file("l/b", 1)), `entry "l/b": "a": not a directory`},
		{"symlink loop", layer(symlink("a", "b"), symlink("b", "a"), file("a/f", 1)), `too many levels of symbolic links`},
		{"long way", layer(symlink("l", strings.Repeat("d/", 2000)+"m"), symlink(strings.Repeat("d/", 2000)+"m", "/l/../x"),
			symlink("n", "l/l/l"), dir("y", 0o755), symlink("x", "n"), file("n/f", 1)), `components`},
		{"hard link to nothing", layer(hardlink("a", "b")), `entry "a": hard link to "b": file does not exist`},
		{"hard link to later entry", layer(hardlink("a", "b"), file("b", 1)), `entry "a": hard link to "b": file does not exist`},
		{"hard link to a directory", layer(dir("d", 0o755), hardlink("a", "d")), `is a directory`},
		{"hard link to the root", layer(hardlink("a", "/")), `is a directory`},
		{"hard link to itself", layer(file("a", 1), hardlink("a", "./a")), `links to itself`},
		{"hard link to what it removes", layer(file("a/b", 1), hardlink("a", "a/b")), `file does not exist`},
		{"hard link over a file", layer(file("a", 1), hardlink("b", "a/c")), `not a directory`},
		{"whiteout of nothing", layer(file("d/.wh.", 0)), `entry "d/.wh.": whiteout: name "" is reserved`},
		{"whiteout of dot", layer(file("d/.wh..", 0)), `name "." is reserved`},
		{"whiteout of parent", layer(file("d/.wh...", 0)), `name ".." is reserved`},
		{"NUL in name", layer(file("a\x00b", 0)), `NUL`},
		{"long name", layer(file(strings.Repeat("x", MaxName+1), 0)), `more than 255`},
		{"long name of parent", layer(file(strings.Repeat("x", MaxName+1)+"/a", 0)), `more than 255`},
		{"deep", layer(dir(deep, 0o755), file(deep+"f", 1), file(deep+"d/f", 1)), `more than 2048 directories deep`},
		{"empty symlink", layer(symlink("a", "")), `symbolic link`},
		{"NUL in symlink", layer(symlink("a", "b\x00")), `NUL`},
		{"long symlink", layer(symlink("a", strings.Repeat("x", MaxSymlink+1))), `4096 bytes`},
		{"unknown type", layer(entry("a", 0o644)), `unknown type`},
		{"nanoseconds", layer(file("a", 1, mtime(0, 1e9))), `nanoseconds`},
		{"negative size", layer(file("a", -1)), `has -1 bytes`},
		{"huge size", layer(file("a", MaxFileSize+1)), `bytes`},
		{"long xattr", layer(file("a", 1, xattr("user.a", strings.Repeat("x", MaxXattrValue+1)))), `65537 bytes`},
		{"long xattr name", layer(file("a", 1, xattr("user."+strings.Repeat("x", MaxXattrName), ""))), `255 bytes in its name`},
		{"extents of a directory", chunks(dir("d", 0o755, extent(0, 1, 0, 0))), `no regular file`},
		{"extent in no chunk", chunks(file("a", 9, extent(0, 1, 2, 0))), `extent in chunk 2 of 2`},
		{"extent beyond chunk", chunks(file("a", 999, extent(0, 101, 0, 0))), `of a chunk of 100`},
		{"extent before chunk", chunks(file("a", 999, extent(0, 1, 0, -1))), `of a chunk of 100`},
		{"extent beyond file", chunks(file("a", 9, extent(5, 5, 0, 0))), `of a file of 9`},
		{"extent at the end of numbers", chunks(file("a", 9, extent(1<<63-1, 1<<63-1, 0, 0))), `of a file of 9`},
		{"extent before file", chunks(file("a", 9, extent(-1, 5, 0, 0))), `before the end`},
		{"empty extent", chunks(file("a", 9, extent(0, 0, 0, 0))), `extent of 0 bytes`},
		{"extents overlap", chunks(file("a", 9, extent(0, 5, 0, 0), extent(4, 1, 1, 0))), `before the end of the last one, 5`},
		{"extents fall", chunks(file("a", 9, extent(5, 1, 0, 0), extent(0, 1, 1, 0))), `before the end of the last one, 6`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := WriteView(t.TempDir()+"/view", []*Layer{layer(), tt.layer}, Info{})
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), `layer 1 ("sha256:t`) {
				t.Errorf("got error %v, want one of layer 1 with %q", err, tt.want)
			}
		})
	}
}
