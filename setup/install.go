package setup

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// DefaultSocket is where containerd finds the snapshotter.
const DefaultSocket = "/run/graze/containerd.sock"

// Options say where things are on a machine. All paths are as the machine sees
// them; the zero value has the usual ones.
type Options struct {
	// Root is a folder below which the machine's files are. Default: "/".
	Root string

	ContainerdConfig string // default: /etc/containerd/config.toml
	NodeConfig       string // default: /etc/graze/node.toml
	Unit             string // systemd's unit; default: /etc/systemd/system/graze.service
	Binary           string // graze itself; default: /usr/local/bin/graze
	Socket           string // the snapshotter's; default: DefaultSocket
	SnapshotRoot     string // folder of the snapshots; default: /var/lib/graze/containerd
	State            string // the node's state folder; default: /var/lib/graze

	// MapsIDs says that the kernel maps the owners of files in FUSE mounts, as Linux
	// does since 6.12. Then pods in user namespaces share the mount of their image.
	MapsIDs bool

	// NodeSettings is the content of NodeConfig, if there is none yet or if
	// ReplaceSettings is set.
	NodeSettings    []byte
	ReplaceSettings bool

	// KeyFile is where the cluster's key is, and Key its content. nil leaves it as
	// it is.
	KeyFile string
	Key     []byte

	// Program is the content of Binary. nil leaves it as it is.
	Program []byte

	// NoUnit leaves systemd alone: the node is started in some other way.
	NoUnit bool
}

func (o Options) withDefaults() (Options, error) {
	root, err := filepath.Abs(cmp.Or(o.Root, "/"))
	if err != nil {
		return o, err
	}
	// Links in the files' paths are compared with it.
	if o.Root, err = filepath.EvalSymlinks(root); err != nil {
		return o, err
	}
	o.ContainerdConfig = cmp.Or(o.ContainerdConfig, "/etc/containerd/config.toml")
	o.NodeConfig = cmp.Or(o.NodeConfig, "/etc/graze/node.toml")
	o.Unit = cmp.Or(o.Unit, "/etc/systemd/system/graze.service")
	o.Binary = cmp.Or(o.Binary, "/usr/local/bin/graze")
	o.Socket = cmp.Or(o.Socket, DefaultSocket)
	o.SnapshotRoot = cmp.Or(o.SnapshotRoot, "/var/lib/graze/containerd")
	o.State = cmp.Or(o.State, "/var/lib/graze")
	for _, path := range []string{o.ContainerdConfig, o.NodeConfig, o.Unit, o.Binary, o.Socket, o.SnapshotRoot, o.State} {
		if !filepath.IsAbs(path) {
			return o, fmt.Errorf("%s is not an absolute path", path)
		}
	}
	return o, nil
}

// Install plans what makes containerd use graze.
func Install(o Options) (*Plan, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &Plan{root: o.Root}
	if o.Program != nil {
		if err := p.set(Change{Path: o.Binary, New: o.Program, Mode: 0o755}); err != nil {
			return nil, err
		}
	}
	if o.Key != nil {
		if err := p.set(Change{Path: o.KeyFile, New: o.Key, Mode: 0o600, Secret: true}); err != nil {
			return nil, err
		}
	}
	if old, err := p.read(o.NodeConfig); err != nil {
		return nil, err
	} else if o.NodeSettings != nil && (old == nil || o.ReplaceSettings) {
		if err := p.set(Change{Path: o.NodeConfig, New: o.NodeSettings, Mode: 0o600}); err != nil {
			return nil, err
		}
	}
	if !o.NoUnit {
		if err := p.set(Change{Path: o.Unit, New: []byte(unit(o)), Mode: 0o644}); err != nil {
			return nil, err
		}
	}
	if err := p.installContainerd(o); err != nil {
		return nil, fmt.Errorf("%s: %w", o.ContainerdConfig, err)
	}
	p.stepsAfter(o)
	return p, nil
}

// installContainerd plans containerd's configuration.
func (p *Plan) installContainerd(o Options) error {
	old, err := p.read(o.ContainerdConfig)
	if err != nil {
		return err
	}
	c, err := parseContainerd(string(old))
	if err != nil {
		return err
	}
	// What an earlier version or another way of installing has left is not mixed
	// with what is added now.
	if c, err = parseContainerd(restore(string(old))); err != nil {
		return err
	}
	if disk := c.disk(); disk != "" {
		p.link(disk, o.SnapshotRoot)
	}
	if path, ok := c.dropInPath(o.ContainerdConfig); ok {
		if err := p.set(Change{Path: path, New: []byte(c.dropIn(o)), Mode: 0o644}); err != nil {
			return err
		}
		if text := restore(string(old)); text != string(old) {
			return p.set(Change{Path: o.ContainerdConfig, New: []byte(text), Mode: 0o644, Backup: true})
		}
		return nil
	}
	text, err := c.patch(o)
	if err != nil {
		return errors.Join(err, errors.New("set it by hand: "+c.byHand(o)))
	}
	return p.set(Change{Path: o.ContainerdConfig, New: []byte(text), Mode: 0o644, Backup: true})
}

// byHand returns what is to be set, for a person.
func (c *containerdConfig) byHand(o Options) string {
	var list []string
	for _, s := range c.settings(o) {
		list = append(list, fmt.Sprintf("[%s] %s", header(s.table), s.line()))
	}
	return strings.Join(list, "; ")
}

// stepsAfter plans what is to be run after the files have changed. A node that runs
// is left running unless something of it has changed.
func (p *Plan) stepsAfter(o Options) {
	if !o.NoUnit {
		if p.changes(o.Unit) {
			p.then("systemctl daemon-reload", "systemctl enable graze")
		}
		if p.changes(o.Unit) || p.changes(o.NodeConfig) || p.changes(o.Binary) || p.changes(o.KeyFile) {
			p.then("systemctl restart graze")
		}
	}
	if slices.ContainsFunc(p.Changes, func(c Change) bool { return c.Path == o.ContainerdConfig || filepath.Base(c.Path) == dropInName }) {
		p.then("systemctl restart containerd")
	}
}
