package setup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// An InUseError says that containerd has snapshots of graze.
type InUseError struct {
	Snapshots int
	Dir       string
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("containerd has %d snapshots of graze, in %s: remove the containers and images that use it first "+
		"('crictl rmp -af; crictl rmi -a', or 'ctr -n NAMESPACE containers rm …; ctr -n NAMESPACE images rm …'), "+
		"or use --force, after which those containers can't be started again", e.Snapshots, e.Dir)
}

// Remove plans the way back. It returns an *InUseError while there are snapshots,
// unless that is forced.
func Remove(o Options, force bool) (*Plan, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &Plan{root: o.Root}
	if err := p.inUse(o.SnapshotRoot); err != nil && !force {
		return nil, err
	}
	if err := p.removeContainerd(o); err != nil {
		return nil, fmt.Errorf("%s: %w", o.ContainerdConfig, err)
	}
	if len(p.Changes) > 0 {
		p.then("systemctl restart containerd")
	}
	if err := p.removeDisk(o); err != nil {
		return nil, err
	}
	if !o.NoUnit {
		wanted := filepath.Join(filepath.Dir(o.Unit), "multi-user.target.wants", filepath.Base(o.Unit))
		if err := errors.Join(p.remove(wanted), p.remove(o.Unit)); err != nil {
			return nil, err
		}
		if p.changes(o.Unit) {
			// Else systemd, or the keeper, would hold the mounts for a node to come.
			unmount := []string{o.Binary, "umount", "--all", "--state", o.State}
			if force {
				unmount = append(unmount, "--force")
			}
			p.Steps = append(p.Steps, unmount)
			p.then("systemctl stop graze", "systemctl daemon-reload")
		}
	}
	if !p.Empty() {
		p.Notes = append(p.Notes, fmt.Sprintf("%s, %s and the state folder stay; remove them if they are not needed", o.Binary, o.NodeConfig))
	}
	return p, nil
}

// inUse returns an error if there are snapshots.
func (p *Plan) inUse(dir string) error {
	entries, err := os.ReadDir(filepath.Join(p.root, dir, "snapshots"))
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	return &InUseError{Snapshots: len(entries), Dir: dir}
}

// removeDisk plans the end of the link for CRI.
func (p *Plan) removeDisk(o Options) error {
	text, err := p.read(o.ContainerdConfig)
	if err != nil {
		return err
	}
	c, err := parseContainerd(string(text))
	if err != nil {
		return err
	}
	if target, err := os.Readlink(filepath.Join(p.root, c.disk())); err != nil || c.disk() == "" || target != o.SnapshotRoot {
		return nil // graze has made no link
	}
	return p.remove(c.disk())
}

// removeContainerd plans containerd's configuration as it was. A file that graze
// has made goes.
func (p *Plan) removeContainerd(o Options) error {
	old, err := p.read(o.ContainerdConfig)
	if err != nil || old == nil {
		return err
	}
	text := restore(string(old))
	c, err := parseContainerd(text)
	if err != nil {
		return err
	}
	if path, ok := c.dropInPath(o.ContainerdConfig); ok {
		if err := p.remove(path); err != nil {
			return err
		}
	}
	backup, err := p.read(o.ContainerdConfig + backupSuffix)
	if err != nil {
		return err
	}
	if text != string(old) && text == freshConfig && len(backup) == 0 {
		text = ""
		if backup == nil {
			return p.remove(o.ContainerdConfig)
		}
	}
	if err := p.set(Change{Path: o.ContainerdConfig, New: []byte(text), Mode: 0o644}); err != nil {
		return err
	}
	switch {
	case backup != nil && string(backup) == text:
		return p.remove(o.ContainerdConfig + backupSuffix)
	case backup != nil:
		p.Notes = append(p.Notes, fmt.Sprintf("%s has been changed since graze was installed; %s is how it was", o.ContainerdConfig, o.ContainerdConfig+backupSuffix))
	}
	return nil
}
