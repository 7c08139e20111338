package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"graze/chunk"
	"graze/fusefs"
)

// serveMounts serves mounts until ctx is done, and returns when the last is gone.
func (n *Node) serveMounts(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(n.ended)
	for {
		select {
		case m := <-n.serve:
			wg.Go(func() { m.run(ctx) })
		case <-ctx.Done():
			n.mu.Lock()
			n.why = context.Cause(ctx)
			n.mu.Unlock()
			return
		}
	}
}

// cause returns why Run ends. It does, when n.ended is closed.
func (n *Node) cause() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.why
}

// errEnded: the node takes no mount any more. The next one will.
var errEnded = fmt.Errorf("%w: the node has ended", chunk.ErrUnavailable)

// restored waits until the mounts of the node before are safe from others.
func (n *Node) restored(ctx context.Context) error {
	select {
	case <-n.restoring:
		return nil
	case <-n.ended:
		return errEnded
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// addMount and removeMount keep the list of what is mounted.
func (n *Node) addMount(m *Mount) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mounts = append(n.mounts, m)
	if n.outlast != nil {
		n.outlast.mounted()
	}
}

func (n *Node) removeMount(m *Mount) {
	n.mu.Lock()
	defer n.mu.Unlock()
	last := m.server.Stats()
	last.InFlight = 0
	n.gone.Add(&last)
	n.mounts = slices.DeleteFunc(n.mounts, func(have *Mount) bool { return have == m })
}

// mountOn returns the node's mount that a folder shows, or nil. One that somebody
// has unmounted is waited for until it has ended: the kernel gives its number to the
// next mount, which it would take for itself, and away.
func (n *Node) mountOn(ctx context.Context, dir string) (*Mount, error) {
	n.mu.Lock()
	mounts := slices.Clone(n.mounts)
	n.mu.Unlock()
	for _, m := range mounts {
		switch {
		case m.info.Dir != dir:
		case m.server.Dead():
			select {
			case <-m.done:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		case m.server.Mounted():
			return m, nil
		}
	}
	return nil, nil
}

// entrust has the descriptor of a mount held, so that the mount lives on when this
// process ends.
func (n *Node) entrust(rec *mountRecord, server *fusefs.Server) {
	if n.keeping == nil {
		return
	}
	session, err := server.Session()
	if err == nil {
		rec.Session = &session
		err = n.keeping.put(rec.name, server.Device())
	}
	if err != nil {
		n.log.Warn("mount will end with this node", "dir", rec.Dir, "err", err)
	}
}

// release has the descriptor of a mount that has ended no longer held.
func (n *Node) release(rec *mountRecord) {
	if n.keeping != nil {
		n.keeping.drop(rec.name)
	}
}

// writeMountRecord and removeMountRecord keep what the next node must know. A node
// that has no store does not own its folder, and is not followed by another.
func (n *Node) writeMountRecord(rec *mountRecord) error {
	if n.store == nil {
		return nil
	}
	return rec.write(n.dir)
}

func (n *Node) removeMountRecord(rec *mountRecord) error {
	if n.store == nil {
		return nil
	}
	return rec.remove(n.dir)
}

// ErrTakeAway, as the cause for which the context of Run ends, has it take all
// mounts away, also those that the next node could go on with.
var ErrTakeAway = errors.New("all mounts are taken away")

// ErrNotMounted: no mount of graze is there.
var ErrNotMounted = fusefs.ErrNotMounted

// Unmount takes a mount of graze away, whether or not it is served. With lazy, one
// that is in use disappears at once and is served until its last user is gone.
func Unmount(dir string, lazy bool) error { return fusefs.Unmount(dir, lazy) }

// Abort takes a mount of graze away from all who use it. It asks nobody, so that it
// also ends the waiting for a node that is stuck or does not come back.
func Abort(dir string) error { return fusefs.Abort(dir) }

// WaitingMounts returns where the mounts are that a node has left to the next one.
func WaitingMounts(state string) (dirs []string, err error) {
	records, _, err := readMountRecords(state)
	boot, bootErr := bootID()
	for _, r := range records {
		if r.Session == nil || r.Boot != boot {
			continue
		}
		if there, _ := r.Session.Mounted(); there {
			dirs = append(dirs, r.Dir)
		}
	}
	return dirs, errors.Join(err, bootErr)
}

// MountDirs returns where the state folder says that images are mounted, whether or
// not a node runs.
func MountDirs(state string) ([]string, error) {
	records, _, err := readMountRecords(state)
	var dirs []string
	for _, r := range records {
		dirs = append(dirs, r.Dir)
	}
	slices.Sort(dirs)
	return slices.Compact(dirs), err
}
