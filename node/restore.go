package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"graze/fusefs"
)

const (
	// restorers is how many mounts are taken up at the same time.
	restorers = 16
	// restorePatience bounds how long a view may take that has to be made again, or
	// an image whose manifest is not here any more.
	restorePatience = time.Minute
)

// restore takes up the mounts that the node before this one has left: those that
// are still alive it goes on serving, those that have died it makes anew. It closes
// n.restoring when nobody can get in its way any more: it has the locks of all
// folders then.
func (n *Node) restore(ctx context.Context) {
	var held map[string]*os.File
	if n.keeping != nil {
		held = n.keeping.begin(ctx)
	}
	defer func() {
		for _, f := range held {
			f.Close()
		}
	}()
	if ctx.Err() != nil {
		return
	}
	if n.store == nil {
		close(n.restoring) // the folder belongs to another node
		return
	}
	records, damaged, err := readMountRecords(n.dir)
	if err != nil {
		n.log.Error("what is known of some mounts can't be read; they are taken away", "err", err)
	}
	for _, file := range damaged {
		os.Remove(file)
	}
	byDir := make(map[string][]*mountRecord)
	known := make(map[string]bool)
	for _, r := range records {
		byDir[r.Dir] = append(byDir[r.Dir], r)
		known[r.name] = true
	}
	n.restoreUsers(held)
	slots := make(chan struct{}, restorers)
	var wg sync.WaitGroup
	for dir, list := range byDir {
		unlock, err := n.dirs.lock(ctx, dir)
		if err != nil {
			break
		}
		wg.Go(func() {
			defer unlock()
			slots <- struct{}{}
			defer func() { <-slots }()
			for _, r := range list {
				n.restoreMount(ctx, r, held[r.name])
			}
		})
	}
	close(n.restoring)
	for name, device := range held {
		if known[name] {
			continue
		}
		if isMountName(name) {
			n.log.Warn("mount of which nothing is known is taken away", "name", name, "err", fusefs.Discard(device))
		}
		n.keeping.drop(name)
	}
	wg.Wait()
	if n.keeping != nil {
		n.keeping.escort()
	}
}

// restoreMount takes up one mount. Device is nil if nobody has held the descriptor.
func (n *Node) restoreMount(running context.Context, r *mountRecord, device *os.File) {
	log := n.log.With("dir", r.Dir, "reference", r.Reference)
	ctx, cancel := context.WithTimeoutCause(running, restorePatience, errors.New("it took too long"))
	defer cancel()
	if device != nil {
		err := errors.New("it was never completed")
		if r.Complete {
			err = n.resume(ctx, r, device)
		}
		if err == nil || running.Err() != nil {
			return // with the node that ends now, the next one goes on
		}
		if r.Complete && !errors.Is(err, fusefs.ErrEnded) {
			log.Error("mount can't be gone on with; its users get errors", "err", err)
		}
		// The last one to hold it was the holder: then the kernel ends the mount.
		device.Close()
		n.keeping.drop(r.name)
	}
	if err := n.bringBack(ctx, r); err != nil {
		log.Error("mount is lost", "err", err)
	}
}

// resume goes on with a mount that is alive.
func (n *Node) resume(ctx context.Context, r *mountRecord, device *os.File) error {
	if r.Session == nil {
		return fusefs.ErrNoResume
	}
	start := time.Now()
	tree, err := n.openRecorded(ctx, r)
	if err != nil {
		return err
	}
	if sum := tree.View.Checksum(); sum != r.View {
		err := fmt.Errorf("the image's view had to be made again and has come out another (checksum %08x, not %08x)", sum, r.View)
		return errors.Join(err, tree.Close())
	}
	server, err := fusefs.Resume(device, *r.Session, tree.View, tree.Files, n.serverConfig(r.Dir))
	if err != nil {
		return errors.Join(err, tree.Close())
	}
	m := n.serveTree(tree, server, r, start)
	n.keeping.adopt(r.name, server.Device())
	return n.start(m)
}

// openRecorded opens the tree of a mount that was there before. If all of it is in
// the state folder, no one is asked for anything.
func (n *Node) openRecorded(ctx context.Context, r *mountRecord) (*Tree, error) {
	img, err := n.Resolve(ctx, r.Image)
	if err != nil {
		return nil, err
	}
	return n.openPart(ctx, img, r.options())
}

// bringBack makes a mount anew that has died with the machine or with its holder.
// One that was taken away on purpose it forgets, and one that was never completed.
// Where mounts end with the node, what is left of one is taken away.
func (n *Node) bringBack(ctx context.Context, r *mountRecord) error {
	boot, err := bootID()
	if err != nil {
		return err
	}
	if n.keeping == nil && r.Session != nil && r.Boot == boot {
		if err := r.Session.Abort(); err != nil {
			return err
		}
	}
	dead, err := fusefs.Clear(r.Dir)
	if dead > 0 {
		n.log.Warn("took a mount away whose node had died", "dir", r.Dir)
	}
	if err := r.remove(n.dir); err != nil {
		return err
	}
	if err != nil || !r.Complete || n.keeping == nil || dead == 0 && r.Boot == boot {
		return nil
	}
	img, err := n.Resolve(ctx, r.Image)
	if err != nil {
		return err
	}
	_, err = n.mountImage(ctx, img, r.Reference, r.Dir, r.options())
	return err
}
