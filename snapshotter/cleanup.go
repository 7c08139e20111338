package snapshotter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/errdefs"
)

// Remove implements snapshots.Snapshotter. What the snapshot leaves behind is
// taken away by Run or Cleanup.
func (s *Snapshotter) Remove(ctx context.Context, key string) error {
	err := s.meta.WithTransaction(ctx, true, func(ctx context.Context) error {
		_, _, err := storage.Remove(ctx, key)
		return err
	})
	if err != nil {
		return fmt.Errorf("remove snapshot %s: %w", key, err)
	}
	s.cleanLater()
	return nil
}

// cleanLater has Run clean up.
func (s *Snapshotter) cleanLater() {
	select {
	case s.removed <- struct{}{}:
	default: // it will, anyway
	}
}

// Cleanup implements snapshots.Cleaner: it takes away the folders and mounts that
// no snapshot needs.
func (s *Snapshotter) Cleanup(ctx context.Context) error {
	_, err := s.cleanup(ctx)
	return err
}

// cleanup is Cleanup. It returns when there is more to do, zero if nothing is known of.
func (s *Snapshotter) cleanup(ctx context.Context) (again time.Time, err error) {
	s.cleaning.Lock()
	defer s.cleaning.Unlock()
	// A snapshot uses a view only after it is in the database, so that those who do,
	// and then are not there, have gone.
	gone := s.views.ids()
	snaps, err := s.prepared(ctx)
	if err != nil {
		return again, err
	}
	for _, snap := range snaps {
		delete(gone, snap.ID)
	}
	again, err = s.views.sweep(ctx, gone, func() (map[View]bool, error) {
		known, damaged, err := s.named(ctx)
		return known, errors.Join(damaged, err)
	})
	errs := []error{err}
	dirs, err := s.abandoned(ctx)
	for _, dir := range dirs {
		errs = append(errs, os.RemoveAll(dir))
	}
	return again, errors.Join(append(errs, err)...)
}

// abandoned returns the folders that are of no snapshot. It puts them where their
// names don't matter, as the ID of a snapshot whose transaction failed is used again.
func (s *Snapshotter) abandoned(ctx context.Context) (dirs []string, err error) {
	// Nobody makes a folder meanwhile: that takes a transaction like this.
	err = s.meta.WithTransaction(ctx, true, func(ctx context.Context) error {
		ids, err := storage.IDMap(ctx)
		if err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		list, err := os.ReadDir(s.snapshotsDir())
		if err != nil {
			return err
		}
		for _, d := range list {
			if _, ok := ids[d.Name()]; ok {
				continue
			}
			dir, err := os.MkdirTemp(s.snapshotsDir(), "old-")
			if err != nil {
				return err
			}
			dirs = append(dirs, dir)
			if err := os.Rename(s.snapshotDir(d.Name()), filepath.Join(dir, d.Name())); err != nil {
				return err
			}
		}
		return nil
	})
	return dirs, err
}

// prepared returns the snapshots that are not committed.
func (s *Snapshotter) prepared(ctx context.Context) (list []storage.Snapshot, err error) {
	err = s.read(ctx, func(ctx context.Context) error {
		return storage.WalkInfo(ctx, func(ctx context.Context, info snapshots.Info) error {
			if info.Kind == snapshots.KindCommitted {
				return nil
			}
			snap, err := storage.GetSnapshot(ctx, info.Name)
			list = append(list, snap)
			return err
		})
	})
	if errdefs.IsNotFound(err) {
		return nil, nil // there never was a snapshot
	}
	return list, err
}
