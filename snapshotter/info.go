package snapshotter

import (
	"context"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/continuity/fs"
	"github.com/containerd/errdefs"
)

// read runs f in a transaction that can't write. f must be quick, and do no I/O
// but on the database.
func (s *Snapshotter) read(ctx context.Context, f func(context.Context) error) error {
	return s.meta.WithTransaction(ctx, false, f)
}

// Stat implements snapshots.Snapshotter.
func (s *Snapshotter) Stat(ctx context.Context, key string) (info snapshots.Info, err error) {
	err = s.read(ctx, func(ctx context.Context) error {
		_, info, _, err = storage.GetInfo(ctx, key)
		return err
	})
	return info, err
}

// Update implements snapshots.Snapshotter.
func (s *Snapshotter) Update(ctx context.Context, info snapshots.Info, fields ...string) (updated snapshots.Info, err error) {
	err = s.meta.WithTransaction(ctx, true, func(ctx context.Context) error {
		updated, err = storage.UpdateInfo(ctx, info, fields...)
		return err
	})
	return updated, err
}

// Usage implements snapshots.Snapshotter. A remote snapshot uses nothing: what was
// read of it is in the node's store, which has a bound of its own and gives up its
// space by itself.
func (s *Snapshotter) Usage(ctx context.Context, key string) (usage snapshots.Usage, err error) {
	var info snapshots.Info
	var id string
	err = s.read(ctx, func(ctx context.Context) error {
		id, info, usage, err = storage.GetInfo(ctx, key)
		return err
	})
	if err != nil || info.Kind != snapshots.KindActive {
		return usage, err
	}
	return s.diskUsage(ctx, id)
}

// diskUsage returns what the snapshot has itself.
func (s *Snapshotter) diskUsage(ctx context.Context, id string) (snapshots.Usage, error) {
	du, err := fs.DiskUsage(ctx, s.upperDir(id))
	return snapshots.Usage(du), err
}

// Commit implements snapshots.Snapshotter.
func (s *Snapshotter) Commit(ctx context.Context, name, key string, opts ...snapshots.Opt) error {
	var id string
	err := s.read(ctx, func(ctx context.Context) (err error) {
		id, _, _, err = storage.GetInfo(ctx, key)
		return err
	})
	if err != nil {
		return err
	}
	usage, err := s.diskUsage(ctx, id)
	if err != nil {
		return err
	}
	err = s.meta.WithTransaction(ctx, true, func(ctx context.Context) error {
		_, err := storage.CommitActive(ctx, key, name, usage, opts...)
		return err
	})
	if err == nil {
		s.cleanLater() // the view below it may not be needed any more
	}
	return err
}

// Walk implements snapshots.Snapshotter. No transaction is open while fn runs,
// which may wait for a client.
func (s *Snapshotter) Walk(ctx context.Context, fn snapshots.WalkFunc, filters ...string) error {
	var list []snapshots.Info
	err := s.read(ctx, func(ctx context.Context) error {
		return storage.WalkInfo(ctx, func(_ context.Context, info snapshots.Info) error {
			list = append(list, info)
			return nil
		}, filters...)
	})
	if errdefs.IsNotFound(err) {
		return nil // there never was a snapshot
	}
	if err != nil {
		return err
	}
	for _, info := range list {
		if err := fn(ctx, info); err != nil {
			return err
		}
	}
	return nil
}
