package snapshotter

import (
	"context"
	"maps"
	"slices"

	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/errdefs"
)

// Views returns the views that containers can be started upon at any time: those that
// a remote snapshot names.
func (s *Snapshotter) Views(ctx context.Context) ([]View, error) {
	var ids map[string]string
	err := s.read(ctx, func(ctx context.Context) (err error) {
		ids, err = storage.IDMap(ctx)
		return err
	})
	if errdefs.IsNotFound(err) {
		return nil, nil // there never was a snapshot
	}
	if err != nil {
		return nil, err
	}
	views := make(map[View]bool)
	for id := range ids {
		v, err := readView(s.snapshotDir(id))
		if err != nil {
			// Nobody can start a container upon it.
			s.log.Warn("snapshot is damaged", "err", err)
			continue
		}
		if v != nil {
			views[*v] = true
		}
	}
	return slices.Collect(maps.Keys(views)), nil
}
