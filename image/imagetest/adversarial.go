package imagetest

import (
	"archive/tar"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Adversarial returns the layers of an image, the lowest first, that has
// everything odd that containerd unpacks to one certain tree.
//
// Certain means: whether the layers are unpacked one over the other into one
// directory, or each into its own for overlayfs, the trees are the same but for
// what depends on the file system, and for the link counts of groups of hard
// links that a higher layer has broken up. Therefore every layer has the entries
// of all directories in which it changes something, as the builders of images
// write them; the root is the exception, for which containerd applies no entry.
//
// containerd stores modification times before 1970 and after 2262 as the epoch,
// and drops extended attributes of the trusted namespace and those of the user
// namespace that are not on regular files and directories.
func Adversarial() []Layer {
	return []Layer{
		{Name: "base", Members: Members(base()...)},
		{Name: "names", Members: Members(names()...)},
		{Name: "links", Members: Members(links()...)},
		{Name: "contents", Members: Members(contents()...)},
		{Name: "changes", Members: Members(changes()...)},
		{Name: "empty", Members: Members()},
		{Name: "changes of changes", Members: Members(changesAgain()...), Trailer: make([]byte, 10<<10)},
		{Name: "archive", Members: Members(archiveForms()...), Unended: true},
		{Name: "small files", Members: smallFiles("small", 1500)},
	}
}

// capability is a valid value of security.capability: cap_net_bind_service=ep.
const capability = "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// acl is a valid value of system.posix_acl_access for mode 0644: the owner rw-,
// user 1000 r--, the group r--, mask r--, others r--.
const acl = "\x02\x00\x00\x00" +
	"\x01\x00\x06\x00\xff\xff\xff\xff" +
	"\x02\x00\x04\x00\xe8\x03\x00\x00" +
	"\x04\x00\x04\x00\xff\xff\xff\xff" +
	"\x10\x00\x04\x00\xff\xff\xff\xff" +
	"\x20\x00\x04\x00\xff\xff\xff\xff"

// base has the kinds, modes, owners, times and attributes, and what the layers
// above it change.
func base() []Member {
	return slices.Concat(kindsAndModes(), ownersAndXattrs(), times(), changeable())
}

func kindsAndModes() []Member {
	return []Member{
		Dir("./").Mode(0o1711).Owner(3, 4), // the root, which containerd leaves as it is
		Dir("kinds/"),
		File("kinds/file", []byte("file\n")),
		File("kinds/empty", nil),
		Dir("kinds/dir/").Mode(0o700),
		Special(tar.TypeFifo, "kinds/fifo", 0, 0),
		Special(tar.TypeChar, "kinds/null", 1, 3).Mode(0o666),
		Special(tar.TypeBlock, "kinds/loop", 7, 0).Mode(0o660).Owner(0, 6),
		Special(tar.TypeBlock, "kinds/large numbers", 259, 70000).Format(tar.FormatPAX),

		Dir("modes/"),
		File("modes/none", []byte("x")).Mode(0),
		File("modes/suid", []byte("x")).Mode(0o4755),
		File("modes/sgid", []byte("x")).Mode(0o2755),
		File("modes/sticky", []byte("x")).Mode(0o1644),
		File("modes/all", []byte("x")).Mode(0o7777).Owner(1000, 1000),
		File("modes/type bits", []byte("x")).Mode(0o100640),
		Dir("modes/sticky dir/").Mode(0o1777),
		Dir("modes/sgid dir/").Mode(0o2775).Owner(0, 50),
		File("modes/sgid dir/child", []byte("x")),
		Dir("modes/sgid dir/dir/"),
		Dir("modes/closed/").Mode(0),
		File("modes/closed/child", []byte("x")),
	}
}

func ownersAndXattrs() []Member {
	return []Member{
		Dir("owners/"),
		File("owners/16 bits", nil).Owner(65535, 65536),
		File("owners/past 7 octal digits, PAX", nil).Owner(1<<21+5, 1<<22).Format(tar.FormatPAX),
		File("owners/past 7 octal digits, GNU", nil).Owner(1<<21+5, 1<<22).Format(tar.FormatGNU),
		File("owners/largest", nil).Owner(1<<32-2, 1<<32-2).Format(tar.FormatPAX),
		Symlink("owners/symlink", "none").Owner(1000, 1001),

		Dir("xattrs/").Xattr("user.on.dir", "yes"),
		File("xattrs/capability", []byte("x")).Mode(0o755).Xattr("security.capability", capability),
		File("xattrs/binary", []byte("x")).Xattr("user.binary", "\x00\xff\n=\x00").Xattr("user.a", "a").Xattr("user.é", "é"),
		File("xattrs/large", nil).Xattr("user.large", string(Text(1, 2000))),
		File("xattrs/acl", []byte("x")).Xattr("system.posix_acl_access", acl),
		File("xattrs/trusted", nil).Xattr("trusted.overlay.opaque", "y").Xattr("user.kept", "1"),
		Symlink("xattrs/symlink", "none").Xattr("user.dropped", "1"),
		Special(tar.TypeFifo, "xattrs/fifo", 0, 0).Xattr("user.dropped", "1"),
	}
}

func times() []Member {
	list := []Member{Dir("times/").MTime(time.Unix(1, 1))}
	for i, t := range []time.Time{
		time.Unix(0, 0), time.Unix(-1, 0), time.Unix(-12345, 678e6), time.Unix(1e9, 1), time.Unix(1e9, 999999999),
		time.Unix(1<<31, 0), time.Unix(1<<32+5, 500e6), time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2300, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		list = append(list, File(fmt.Sprintf("times/%d", i), nil).MTime(t))
	}
	return append(list,
		Symlink("times/symlink", "none").MTime(time.Unix(1e9, 5)),
		File("times/GNU", nil).MTime(time.Unix(1<<33+1, 0)).Format(tar.FormatGNU))
}

// changeable has what the layers above change.
func changeable() []Member {
	return []Member{
		Dir("change/"),
		File("change/removed", []byte("base")),
		File("change/replaced", []byte("base")),
		File("change/removed and made again", []byte("base")),
		File("change/file to dir", []byte("base")),
		File("change/file to symlink", []byte("base")),
		Symlink("change/symlink to dir", "removed dir"),
		Symlink("change/symlink to file", "removed dir"),
		Special(tar.TypeFifo, "change/fifo to file", 0, 0),
		Dir("change/removed dir/"),
		File("change/removed dir/a", []byte("base")),
		Dir("change/removed dir/sub/"),
		File("change/removed dir/sub/b", []byte("base")),
		Dir("change/dir to file/"),
		File("change/dir to file/a", []byte("base")),
		Dir("change/dir to symlink/"),
		File("change/dir to symlink/a", []byte("base")),
		Dir("change/merged/").Mode(0o700),
		File("change/merged/kept", []byte("base")),
		File("change/merged/removed", []byte("base")),
		Dir("change/opaque/"),
		File("change/opaque/hidden", []byte("base")),
		File("change/opaque/replaced", []byte("base")),
		Dir("change/opaque/sub/"),
		File("change/opaque/sub/hidden", []byte("base")),
		Dir("change/opaque late/"),
		File("change/opaque late/hidden", []byte("base")),
		Dir("change/opaque, empty/"),
		File("change/opaque, empty/hidden", []byte("base")),
		Dir("change/group/"),
		File("change/group/a", []byte("group")),
		Link("change/group/b", "change/group/a"),
		Link("change/group/c", "change/group/a"),
		File("change/group/d", []byte("pair")),
		Link("change/group/e", "change/group/d"),
	}
}

// names has names of all shapes.
func names() []Member {
	long := strings.Repeat("n", 255)
	list := []Member{
		Dir("names/"),
		File("names/"+long, []byte("255")).Format(tar.FormatPAX),
		File("names/"+strings.Repeat("g", 255), []byte("255")).Format(tar.FormatGNU),
		File("names/"+strings.Repeat("é", 127), []byte("254")),
		File("names/new\nline", []byte("x")),
		File("names/tab\tand \\ and \"", []byte("x")),
		File("names/ space ", []byte("x")),
		File("names/-rf", []byte("x")),
		File("names/*", []byte("x")),
		File("names/not UTF-8 \xff\xfe", []byte("GNU")).Format(tar.FormatGNU),
		File("names/not UTF-8 \xff\xfd", []byte("PAX")).Format(tar.FormatPAX),
		File("names/...", []byte("x")),
		File("names/..a", []byte("x")),
		File("names/.wh", []byte("no whiteout")),
		File("names/.whx", []byte("no whiteout")),
		File("names/wh.x", []byte("no whiteout")),
		File("names/\x01", []byte("x")),
		Dir("names/Case/"),
		Dir("names/case/"),
		File("names/é", []byte("composed")),
		File("names/é", []byte("decomposed")),
	}
	deep := "names/deep/"
	list = append(list, Dir(deep))
	for i := range 60 {
		deep += fmt.Sprintf("level %02d, thirty-two bytes long..../", i)
		list = append(list, Dir(deep))
	}
	return append(list, File(deep+"file", []byte("deep")))
}

// links has symbolic and hard links.
func links() []Member {
	fifo := Link("links/fifo2", "links/dir/fifo")
	null := Link("links/null2", "links/null").Mode(0o600)
	return []Member{
		Dir("links/"),
		Dir("links/dir/"),
		File("links/dir/target", []byte("target")),
		Symlink("links/relative", "dir/target"),
		Symlink("links/up", "../links/dir/../dir/target"),
		Symlink("links/absolute", "/links/dir/target"),
		Symlink("links/dangling", "nowhere"),
		Symlink("links/loop", "loop"),
		Symlink("links/to dir", "dir"),
		Symlink("links/61", strings.Repeat("6", 61)),
		Symlink("links/101", strings.Repeat("1", 101)).Format(tar.FormatGNU),
		Symlink("links/long", strings.Repeat("long/", 818)+"12345"), // 4095 bytes
		Symlink("links/odd", "new\nline and \xff"),

		File("links/a", []byte("three names")),
		Link("links/b", "links/a"),
		Link("links/dir/c", "links/b"), // a link to a link
		Link("links/d", "./links/dir/../a"),
		Link("links/e", "/links/a"),
		Link("links/symlink2", "links/dangling").Mode(0o777),
		Special(tar.TypeFifo, "links/dir/fifo", 0, 0),
		fifo,
		Special(tar.TypeChar, "links/null", 1, 3).Mode(0o600),
		null,
		File("links/empty", nil),
		Link("links/empty2", "links/empty"),
		File("links/xattr", []byte("x")).Xattr("user.x", "1"),
		Link("links/xattr2", "links/xattr").Xattr("user.x", "1"),
		File("links/to dir/through", []byte("lands in links/dir")),
		Dir("links/to dir/sub/"),
	}
}

// contents has files of many sizes, and sparse ones.
func contents() []Member {
	list := []Member{Dir("contents/")}
	for i, n := range []int{
		1, 2, 511, 512, 513, 1023, 4095, 4096, 4097, 65535, 65536, 65537,
		256<<10 - 1, 256 << 10, 256<<10 + 1, 1<<20 - 1, 1 << 20, 1<<20 + 1, 5<<20 + 3,
	} {
		data := Random(uint64(i), n)
		if i%3 == 0 {
			data = Text(uint64(i), n)
		}
		list = append(list, File(fmt.Sprintf("contents/%d", n), data))
	}
	data := Random(100, 100000)
	return append(list,
		File("contents/zeros", make([]byte, 3<<20)),
		File("contents/same", data),
		File("contents/same again", data),
		sparsePAX("contents/sparse", 3<<20, []fragment{{4096, data[:5000]}, {1 << 20, data[:512]}, {2<<20 + 1, data[:99]}}),
		sparsePAX("contents/sparse, data at both ends", 1<<20, []fragment{{0, data[:4096]}, {1<<20 - 4096, data[:4096]}}),
		sparsePAX("contents/sparse, all hole", 1<<20, []fragment{{1 << 20, nil}}),
		sparsePAX01("contents/sparse 0.1", 1<<20, []fragment{{8192, data[:700]}, {1 << 19, data[:1]}}),
		File("contents/after sparse", []byte("x")),
	)
}

// changes removes and replaces what base has.
func changes() []Member {
	return []Member{
		Dir("change/").Mode(0o750),
		Whiteout("change/", "removed"),
		File("change/replaced", []byte("replaced")).Mode(0o600),
		Whiteout("change/", "removed and made again"),
		File("change/removed and made again", []byte("made again")),
		Whiteout("change/", "never was"),
		Dir("change/file to dir/"),
		File("change/file to dir/a", []byte("new")),
		Symlink("change/file to symlink", "replaced"),
		Dir("change/symlink to dir/"),
		File("change/symlink to dir/a", []byte("new")),
		File("change/symlink to file", []byte("new")),
		File("change/fifo to file", []byte("new")),
		Whiteout("change/", "removed dir"),
		File("change/dir to file", []byte("new")),
		Symlink("change/dir to symlink", "merged"),
		Dir("change/merged/").Mode(0o711).Owner(7, 8),
		Whiteout("change/merged/", "removed"),
		File("change/merged/added", []byte("new")),
		Dir("change/opaque/"),
		Opaque("change/opaque/"),
		File("change/opaque/replaced", []byte("new")),
		Dir("change/opaque late/"),
		File("change/opaque late/added", []byte("new")),
		Opaque("change/opaque late/"), // hides the layers below only
		Dir("change/opaque, empty/"),
		Opaque("change/opaque, empty/"),
		Dir("change/opaque, new/"),
		Opaque("change/opaque, new/"),
		File("change/opaque, new/a", []byte("new")),
		Dir("change/group/"),
		File("change/group/b", []byte("no longer of the group")),
		Whiteout("change/group/", "e"),
	}
}

// changesAgain changes what changes did.
func changesAgain() []Member {
	return []Member{
		Dir("change/"),
		File("change/removed", []byte("back")),
		Whiteout("change/", "removed and made again"),
		Dir("change/removed dir/"),
		File("change/removed dir/c", []byte("the only one")),
		Whiteout("change/", "file to dir"),
		File("change/symlink to dir", []byte("file again")),
		Dir("change/dir to file/"), // dir, file, dir: the first one's files are gone
		File("change/dir to file/b", []byte("new")),
		Dir("change/opaque/"),
		Whiteout("change/opaque/", "replaced"),
		File("change/opaque/hidden", []byte("not the one of base")),
		Dir("change/opaque/sub/"), // made again without what it had
		Dir("change/opaque late/"),
		Opaque("change/opaque late/"),
		Dir("change/group/"),
		Whiteout("change/group/", "a"),
		Dir("kinds/"),
		Whiteout("kinds/", "null"),
		File("kinds/fifo", []byte("file now")),
	}
}

// archiveForms has entries whose form is odd, not what they say.
func archiveForms() []Member {
	twice := Link("archive/twice, link", "archive/twice")
	return []Member{
		{Header: tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "applies to nothing"}}},
		Dir("archive"), // no slash at the end
		File("./archive/dot", []byte("x")),
		File("/archive/absolute", []byte("x")),
		File("archive//double//slash", []byte("in a directory of that name")),
		Dir("archive/double/"), // after what is in it
		File("archive/./sub/../inner dots", []byte("x")),
		File("archive/twice", []byte("first")).Mode(0o600),
		Dir("archive/twice, dir/").Mode(0o700),
		File("archive/twice, dir/a", []byte("x")),
		File("archive/twice", []byte("second, and longer")),
		twice,
		Dir("archive/twice, dir/").Mode(0o711),
		File("archive/file then dir", []byte("x")),
		Dir("archive/file then dir/"),
		File("archive/file then dir/a", []byte("x")),
		Dir("archive/dir then file/"),
		File("archive/dir then file/a", []byte("x")),
		File("archive/dir then file", []byte("x")),
		rawHeader{name: "archive/oldest format", kind: 0}.member([]byte("v7")),
		rawHeader{name: "archive/oldest format, dir/", kind: 0}.member(nil),
		{Header: tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "another"}}},
		File("archive/PAX time", []byte("x")).MTime(time.Unix(1e9, 123456789)),
	}
}
