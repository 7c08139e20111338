package node

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"
)

// A Holder holds the descriptors of mounts while no node is there to serve them.
type Holder interface {
	// Put holds what device leads to, under a name; Drop lets go of it.
	Put(name string, device *os.File) error
	Drop(name string) error

	// Held returns what was held at first, by name. The files are the caller's.
	Held() map[string]*os.File

	// Lost is closed when nothing is held any more.
	Lost() <-chan struct{}
}

const (
	// holderPatience is how long the former node may take to end before that is told.
	holderPatience = 10 * time.Second
	// holderRetry is how long the node waits before it looks for a holder again.
	holderRetry = time.Second
)

// keeping sees to it that the descriptors of all mounts are held by a Holder, and
// by another one when that has gone.
type keeping struct {
	open func(ctx context.Context) (Holder, error)
	log  *slog.Logger

	mu      sync.Mutex // guards the fields below
	holder  Holder     // nil while there is none
	devices map[string]*os.File
	held    map[string]bool // those of devices that the holder has

	companion companion
}

func newKeeping(open func(ctx context.Context) (Holder, error), log *slog.Logger) *keeping {
	return &keeping{open: open, log: log, devices: make(map[string]*os.File), held: make(map[string]bool)}
}

// begin finds the first holder, and returns what it has. It waits until the node
// before this one has ended, however long that takes.
func (k *keeping) begin(ctx context.Context) map[string]*os.File {
	late := time.AfterFunc(holderPatience, func() {
		k.log.Warn("waiting for the end of the node that ran before; its mounts wait too")
	})
	defer late.Stop()
	holder, err := k.open(ctx)
	if err != nil {
		if ctx.Err() == nil {
			k.log.Error("mounts will end with this node, until that is mended", "err", err)
		}
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.holder = holder
	return holder.Held()
}

// run looks for another holder whenever there is none, until ctx is done. Begin has
// returned.
func (k *keeping) run(ctx context.Context) {
	for {
		k.mu.Lock()
		holder := k.holder
		k.mu.Unlock()
		if holder != nil {
			select {
			case <-holder.Lost():
				k.log.Warn("what holds the descriptors of mounts has ended; another is started")
				k.set(nil)
			case <-ctx.Done():
				return
			}
		}
		if holder, err := k.open(ctx); err == nil {
			for _, f := range holder.Held() { // of mounts that we serve
				f.Close()
			}
			k.set(holder)
			continue
		}
		select {
		case <-time.After(holderRetry):
		case <-ctx.Done():
			return
		}
	}
}

// set makes holder the one to use, and has it hold all devices.
func (k *keeping) set(holder Holder) {
	k.mu.Lock()
	k.holder = holder
	clear(k.held)
	names := slices.Collect(maps.Keys(k.devices))
	k.mu.Unlock()
	if holder == nil {
		return
	}
	for _, name := range names {
		if err := k.pass(name); err != nil {
			k.log.Warn("mount will end with this node", "name", name, "err", err)
		}
	}
}

// errNoHolder: nothing holds descriptors now.
var errNoHolder = errors.New("nothing holds the descriptors of mounts")

// put has a device held under a name, now if possible and later otherwise.
func (k *keeping) put(name string, device *os.File) error {
	k.mu.Lock()
	k.devices[name] = device
	k.mu.Unlock()
	err := k.pass(name)
	k.escort()
	return err
}

// adopt is put for a device that the holder has, as it had it at first.
func (k *keeping) adopt(name string, device *os.File) {
	k.mu.Lock()
	k.devices[name] = device
	k.held[name] = k.holder != nil
	k.mu.Unlock()
	k.escort()
}

// pass passes a device on to the holder.
func (k *keeping) pass(name string) error {
	k.mu.Lock()
	holder, device := k.holder, k.devices[name]
	k.mu.Unlock()
	switch {
	case device == nil:
		return nil // it has been dropped
	case holder == nil:
		return errNoHolder
	}
	if err := holder.Put(name, device); err != nil {
		return err
	}
	k.mu.Lock()
	dropped := k.devices[name] != device
	if k.holder == holder && !dropped {
		k.held[name] = true
	}
	k.mu.Unlock()
	if dropped {
		return holder.Drop(name)
	}
	return nil
}

// drop has a device no longer held.
func (k *keeping) drop(name string) {
	k.forget(name)
	k.escort()
}

func (k *keeping) forget(name string) {
	k.mu.Lock()
	delete(k.devices, name)
	delete(k.held, name)
	holder := k.holder
	k.mu.Unlock()
	if holder == nil {
		return
	}
	if err := holder.Drop(name); err != nil {
		k.log.Debug("descriptor of a mount that has ended is still held", "name", name, "err", err)
	}
}

// has reports whether a device is held.
func (k *keeping) has(name string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.holder == nil {
		return false
	}
	select {
	case <-k.holder.Lost():
		return false
	default:
		return k.held[name]
	}
}
