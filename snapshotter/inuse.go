package snapshotter

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/errdefs"
)

// Views returns the views that containers can be started upon at any time: those that
// a remote snapshot names.
func (s *Snapshotter) Views(ctx context.Context) ([]View, error) {
	named, damaged, err := s.named(ctx)
	if err != nil {
		return nil, err
	}
	if damaged != nil {
		// Nobody can start a container upon them.
		s.log.Warn("snapshots are damaged", "err", damaged)
	}
	return slices.Collect(maps.Keys(named)), nil
}

// named returns the views that remote snapshots name. What is wrong with those that
// can't be read is damaged.
func (s *Snapshotter) named(ctx context.Context) (views map[View]bool, damaged, err error) {
	var ids map[string]string
	err = s.read(ctx, func(ctx context.Context) (err error) {
		ids, err = storage.IDMap(ctx)
		return err
	})
	if err != nil && !errdefs.IsNotFound(err) { // if there never was a snapshot
		return nil, nil, err
	}
	views = make(map[View]bool)
	for id := range ids {
		v, err := readView(s.snapshotDir(id))
		if err != nil {
			damaged = errors.Join(damaged, err)
		} else if v != nil {
			views[*v] = true
		}
	}
	return views, damaged, nil
}
