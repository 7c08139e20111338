package setup

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"runtime"
	"strings"
)

// Snapshotter is the name by which containerd knows graze.
const Snapshotter = "graze"

// The tables of containerd's configuration that matter.
var (
	tableProxy    = []string{"proxy_plugins", Snapshotter}
	tableExports  = []string{"proxy_plugins", Snapshotter, "exports"}
	tableCRI      = []string{"plugins", "io.containerd.grpc.v1.cri", "containerd"} // version 2
	tableImages   = []string{"plugins", "io.containerd.cri.v1.images"}             // from version 3 on
	tableTransfer = []string{"plugins", "io.containerd.transfer.v1.local"}
)

// A containerdConfig is containerd's configuration file.
type containerdConfig struct {
	text    string
	version int64
	tree    map[string]any
}

// freshConfig is the configuration where there was none. Every containerd since
// 1.3 understands this version.
const freshConfig = "version = 2\n"

// parseContainerd reads a configuration. An empty one is taken as freshConfig.
func parseContainerd(text string) (c containerdConfig, err error) {
	if strings.TrimSpace(text) == "" {
		text = freshConfig
	}
	c.text = text
	if c.tree, err = decode(text); err != nil {
		return c, err
	}
	c.version, _ = c.tree["version"].(int64)
	if c.version < 2 {
		return c, errors.New("it has version 1, which is not supported: convert it with 'containerd config migrate'")
	}
	return c, nil
}

// settings returns what containerd is to be told. A file of version 2 may be read
// by containerd 2 as well, which converts it, but loses CRI's snapshotter where the
// file names no runtimes: so there it stands in both tables.
func (c *containerdConfig) settings(o Options) []setting {
	list := []setting{
		{tableProxy, "type", "snapshot"},
		{tableProxy, "address", o.Socket},
	}
	if o.MapsIDs {
		list = append(list, setting{tableProxy, "capabilities", []any{"remap-ids"}})
	}
	list = append(list,
		setting{tableExports, "root", o.SnapshotRoot},
		setting{tableExports, "enable_remote_snapshot_annotations", "true"})
	tables := [][]string{tableImages}
	if c.version == 2 {
		tables = [][]string{tableCRI, tableImages}
	}
	for _, table := range tables {
		list = append(list, setting{table, "snapshotter", Snapshotter}, setting{table, "disable_snapshot_annotations", false})
	}
	return list
}

// disk returns the folder whose disk CRI reports as that of graze's snapshots.
// containerd 2 is told of another one by its configuration; older ones, which read
// no file of version 3, always think of this one, and kubelet has no figures at all
// where it is missing. It is "" where that can't be.
func (c *containerdConfig) disk() string {
	if c.version > 2 {
		return ""
	}
	root, _ := c.tree["root"].(string)
	return filepath.Join(cmp.Or(root, "/var/lib/containerd"), "io.containerd.snapshotter.v1."+Snapshotter)
}

// patch returns the configuration with graze in it.
func (c *containerdConfig) patch(o Options) (string, error) {
	text := c.text
	changed := false
	for _, s := range c.settings(o) {
		after, did, err := edit(text, s)
		if err != nil {
			return "", err
		}
		text, changed = after, changed || did
	}
	if block := c.unpackBlock(); block != "" {
		if after := text + mark(block); meansMore(text, after) {
			text, changed = after, true
		}
	}
	if !changed {
		return c.text, nil
	}
	return text, nil
}

// unpackBlock returns what makes the transfer service, which ctr pulls with since
// containerd 2, unpack by graze; "" if the configuration does. That there is a list
// makes containerd forget its own, so its default is in it.
func (c *containerdConfig) unpackBlock() string {
	list, _ := get(c.tree, append(tableTransfer[:2:2], "unpack_config")).([]any)
	for _, item := range list {
		if m, ok := item.(map[string]any); ok && m["snapshotter"] == Snapshotter {
			return ""
		}
	}
	names := []string{"overlayfs", Snapshotter}
	if len(list) > 0 {
		names = names[1:]
	}
	var b strings.Builder
	for _, name := range names {
		fmt.Fprintf(&b, "[[%s.unpack_config]]\n  platform = %q\n  snapshotter = %q\n  differ = \"walking\"\n",
			header(tableTransfer), "linux/"+runtime.GOARCH, name)
	}
	return b.String()
}

// mark marks each line of a block as added.
func mark(block string) string {
	return strings.ReplaceAll(block, "\n", addedMark+"\n")
}

// meansMore reports whether a text with an appended block is TOML. It is not where
// the list has been written in another way.
func meansMore(before, after string) bool {
	_, err := decode(after)
	return err == nil && before != after
}

// dropIn returns a configuration file of graze's own.
func (c *containerdConfig) dropIn(o Options) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Made by 'graze install', taken away by 'graze uninstall'.\nversion = 3\n")
	var last string
	for _, s := range c.settings(o) {
		if h := header(s.table); h != last {
			fmt.Fprintf(&b, "\n[%s]\n", h)
			last = h
		}
		fmt.Fprintf(&b, "  %s\n", s.line())
	}
	return b.String() + "\n" + c.unpackBlock()
}

// dropInPath returns where the configuration imports a file of graze's own from,
// if it does and if containerd merges it key by key, as containerd 2 does.
func (c *containerdConfig) dropInPath(file string) (string, bool) {
	imports, _ := c.tree["imports"].([]any)
	if c.version < 3 {
		return "", false
	}
	for _, item := range imports {
		pattern, ok := item.(string)
		if !ok {
			continue
		}
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(filepath.Dir(file), pattern)
		}
		if ok, err := path.Match(filepath.Base(pattern), dropInName); err == nil && ok && !strings.ContainsAny(filepath.Dir(pattern), "*?[") {
			return filepath.Join(filepath.Dir(pattern), dropInName), true
		}
	}
	return "", false
}

// dropInName sorts after other files, which it must win against.
const dropInName = "zz-graze.toml"
