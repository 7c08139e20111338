package snapshotter

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/errdefs"

	"graze/chunk"
)

// Mounts implements snapshots.Snapshotter. The view that the snapshot stands upon
// is mounted afterwards; this takes the network only if the node has lost what it
// knew of the image.
func (s *Snapshotter) Mounts(ctx context.Context, key string) ([]mount.Mount, error) {
	var snap storage.Snapshot
	var info snapshots.Info
	err := s.read(ctx, func(ctx context.Context) (err error) {
		if snap, err = storage.GetSnapshot(ctx, key); err != nil {
			return err
		}
		_, info, _, err = storage.GetInfo(ctx, key)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s.mounts(ctx, snap, info.Labels)
}

// mounts returns the mounts of a prepared snapshot, with the view below it there.
func (s *Snapshotter) mounts(ctx context.Context, snap storage.Snapshot, labels map[string]string) ([]mount.Mount, error) {
	chain, err := s.chain(snap.ParentIDs)
	if err != nil {
		return nil, err
	}
	if chain.view != nil {
		err := s.views.mount(ctx, *chain.view, snap.ID)
		if errors.Is(err, chunk.ErrUnavailable) {
			return nil, fmt.Errorf("%w: %w", errdefs.ErrUnavailable, err) // worth another try
		}
		if err != nil {
			return nil, err
		}
	}
	return s.describe(snap, chain.lower, remapOptions(labels)), nil
}

// describe returns the mount of a prepared snapshot upon the lower folders, the
// highest first.
func (s *Snapshotter) describe(snap storage.Snapshot, lower, options []string) []mount.Mount {
	view := snap.Kind == snapshots.KindView
	bind := func(dir, access string) []mount.Mount {
		return []mount.Mount{{Type: "bind", Source: dir, Options: append(options, access, "rbind")}}
	}
	switch {
	case len(lower) == 0 && view:
		return bind(s.upperDir(snap.ID), "ro")
	case len(lower) == 0:
		return bind(s.upperDir(snap.ID), "rw")
	case len(lower) == 1 && view:
		return bind(lower[0], "ro")
	}
	if !view {
		options = append(options, "workdir="+s.workDir(snap.ID), "upperdir="+s.upperDir(snap.ID))
	}
	options = append(options, fmt.Sprintf("lowerdir=%s", strings.Join(lower, ":")))
	return []mount.Mount{{Type: "overlay", Source: "overlay", Options: append(options, s.options...)}}
}

// A chain is what a snapshot stands upon.
type chain struct {
	lower []string // folders, the highest first
	view  *View    // that is mounted on the last of them; nil if none is
}

// chain returns what the snapshots with these IDs consist of, the highest first.
func (s *Snapshotter) chain(ids []string) (c chain, err error) {
	for _, id := range ids {
		if c.view, err = readView(s.snapshotDir(id)); err != nil {
			return c, err
		}
		if c.view != nil {
			c.lower = append(c.lower, s.views.path(*c.view))
			return c, nil
		}
		c.lower = append(c.lower, s.upperDir(id))
	}
	return c, nil
}
