package node

import "os"

// HeldName reports whether a node gives such a name to what it has held.
func HeldName(name string) bool { return isMountName(name) || name == vaultName }

// A companion is a descriptor that is held for as long as any device is: without
// mounts that go on there is no need for it, and what holds it can end.
type companion struct {
	name string
	file *os.File // nil if there is none
}

// accompany makes f the companion. held says that the holder has it already.
func (k *keeping) accompany(name string, f *os.File, held bool) {
	k.mu.Lock()
	k.companion = companion{name, f}
	if held && k.holder != nil {
		k.devices[name] = f
		k.held[name] = true
	}
	k.mu.Unlock()
	k.escort()
}

// escort has the companion held if there are devices, and only then.
func (k *keeping) escort() {
	k.mu.Lock()
	name, file := k.companion.name, k.companion.file
	_, there := k.devices[name]
	others := len(k.devices)
	if there {
		others--
	}
	if file != nil && !there && others > 0 {
		k.devices[name] = file
	}
	k.mu.Unlock()
	switch {
	case file == nil:
	case there && others == 0:
		k.forget(name)
	case !there && others > 0:
		if err := k.pass(name); err != nil {
			k.log.Warn("credentials of pods will end with this node", "err", err)
		}
	}
}
