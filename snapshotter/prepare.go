package snapshotter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/errdefs"
)

// Prepare implements snapshots.Snapshotter. If it is for a layer that is served
// lazily, the layer's snapshot is there afterwards, and the error says so.
func (s *Snapshotter) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	var info snapshots.Info
	for _, opt := range opts {
		if err := opt(&info); err != nil {
			return nil, err
		}
	}
	if w, ok := parseLabels(info.Labels); ok {
		// Layers belong to no user namespace. Some versions of containerd pass on what
		// an image says of itself.
		delete(info.Labels, snapshots.LabelSnapshotUIDMapping)
		delete(info.Labels, snapshots.LabelSnapshotGIDMapping)
		if err := s.serve(ctx, w, key, parent, info.Labels); err != nil {
			return nil, err
		}
	} else if chain, ok := fetchedChain(key); ok {
		found, err := s.find(ctx, chain)
		if err != nil {
			return nil, err
		}
		s.tell(wanted{Chain: chain}, &decision{reason: Fetched, image: Image{Name: found.Image}})
	}
	return s.create(ctx, snapshots.KindActive, key, parent, info.Labels)
}

// View implements snapshots.Snapshotter.
func (s *Snapshotter) View(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	var info snapshots.Info
	for _, opt := range opts {
		if err := opt(&info); err != nil {
			return nil, err
		}
	}
	return s.create(ctx, snapshots.KindView, key, parent, info.Labels)
}

// serve makes the remote snapshot of a layer that is served lazily, and returns
// errdefs.ErrAlreadyExists. It returns nil if containerd is to pull the layer.
func (s *Snapshotter) serve(ctx context.Context, w wanted, key, parent string, labels map[string]string) error {
	err := s.read(ctx, func(ctx context.Context) error {
		_, err := target(ctx, w, parent)
		return err
	})
	if err != nil {
		return err
	}
	view, err := s.decide(ctx, w)
	if err != nil || view == (View{}) {
		return err
	}
	labels[remoteLabel] = "remote snapshot"
	err = s.meta.WithTransaction(ctx, true, func(ctx context.Context) error {
		name, err := target(ctx, w, parent) // somebody else may have been faster
		if err != nil {
			return err
		}
		snap, err := storage.CreateSnapshot(ctx, snapshots.KindActive, key, parent, snapshots.WithLabels(labels))
		if err != nil {
			return err
		}
		if err := s.makeDir(snap.ID, func(dir string) error { return writeView(dir, view) }); err != nil {
			return err
		}
		_, err = storage.CommitActive(ctx, key, name, snapshots.Usage{}, snapshots.WithLabels(labels))
		return err
	})
	if err != nil {
		return err
	}
	return fmt.Errorf("layer %s is served lazily: %w", w.Chain, errdefs.ErrAlreadyExists)
}

// target returns the name of the remote snapshot of a layer, within a transaction.
// It is the chain ID, unless a snapshot of that chain stands upon another parent:
// another namespace of containerd may have pulled the layers below. If the snapshot
// is there already the error is errdefs.ErrAlreadyExists.
func target(ctx context.Context, w wanted, parent string) (name string, err error) {
	for _, name = range []string{string(w.Chain), string(w.Chain) + " on " + parent} {
		_, info, _, err := storage.GetInfo(ctx, name)
		switch {
		case errdefs.IsNotFound(err):
			return name, nil
		case err != nil:
			return "", err
		case info.Parent == parent:
			return "", fmt.Errorf("layer %s: %w", w.Chain, errdefs.ErrAlreadyExists)
		}
	}
	return "", fmt.Errorf("layer %s stands upon another parent than %s", w.Chain, parent)
}

// create makes a snapshot to which can be written, or one to look at. The view
// that it stands upon is mounted afterwards.
func (s *Snapshotter) create(ctx context.Context, kind snapshots.Kind, key, parent string, labels map[string]string) ([]mount.Mount, error) {
	var snap storage.Snapshot
	err := s.meta.WithTransaction(ctx, true, func(ctx context.Context) (err error) {
		snap, err = storage.CreateSnapshot(ctx, kind, key, parent, snapshots.WithLabels(labels))
		if err != nil {
			return err
		}
		return s.makeDir(snap.ID, func(dir string) error { return s.fill(dir, snap, labels) })
	})
	if err != nil {
		return nil, err
	}
	mounts, err := s.mounts(ctx, snap, labels)
	if err != nil {
		// Nobody gets to know the snapshot; what is left is cleaned up.
		return nil, errors.Join(err, s.Remove(context.WithoutCancel(ctx), key))
	}
	return mounts, nil
}

// makeDir makes the folder of a snapshot in one step. A transaction that can write
// must be open, so that nobody takes the folder for an abandoned one.
func (s *Snapshotter) makeDir(id string, fill func(dir string) error) error {
	dir, err := os.MkdirTemp(s.snapshotsDir(), "new-")
	if err != nil {
		return err
	}
	if err = fill(dir); err == nil {
		// One of this name is what a transaction has left that did not succeed.
		err = errors.Join(os.RemoveAll(s.snapshotDir(id)), os.Rename(dir, s.snapshotDir(id)))
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	return nil
}

// fill makes what the folder of a prepared snapshot has.
func (s *Snapshotter) fill(dir string, snap storage.Snapshot, labels map[string]string) error {
	upper := filepath.Join(dir, "fs")
	if err := os.Mkdir(upper, 0o755); err != nil {
		return err
	}
	if snap.Kind == snapshots.KindActive {
		if err := os.Mkdir(filepath.Join(dir, "work"), 0o711); err != nil {
			return err
		}
	}
	uid, gid, err := s.owner(snap, labels)
	if err != nil {
		return err
	}
	return os.Lchown(upper, uid, gid)
}

// owner returns the owner of a snapshot's root: that of its parent, or the root of
// the user namespace that the snapshot is for. The root of a view is root's.
func (s *Snapshotter) owner(snap storage.Snapshot, labels map[string]string) (uid, gid int, err error) {
	if uid, gid, ok, err := mappedRoot(labels); ok || err != nil {
		return uid, gid, err
	}
	if len(snap.ParentIDs) == 0 {
		return 0, 0, nil
	}
	fi, err := os.Stat(s.upperDir(snap.ParentIDs[0]))
	if errors.Is(err, os.ErrNotExist) {
		return 0, 0, nil // a remote one
	}
	if err != nil {
		return 0, 0, err
	}
	st := fi.Sys().(*syscall.Stat_t)
	return int(st.Uid), int(st.Gid), nil
}
