package node

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"graze/fusefs"
)

// mountsDir is the folder of the state folder that has a file for each mount.
const mountsDir = "mounts"

// mountPrefix begins the names of mounts.
const mountPrefix = "mount-"

func isMountName(name string) bool { return strings.HasPrefix(name, mountPrefix) }

// A mountRecord is what the state folder keeps of a mount, for the next node to go
// on with it. The file is named for the mount, and so is the descriptor that a
// Holder has.
type mountRecord struct {
	name string

	Dir       string `json:"dir"`
	Reference string `json:"reference"` // as a person knows it
	Image     string `json:"image"`     // the reference by digest
	Layers    int    `json:"layers,omitempty"`
	Build     bool   `json:"build,omitempty"`

	// Boot tells one run of the kernel from another.
	Boot string `json:"boot"`

	// The mount is complete with what follows. View is the checksum of the tree.
	Complete bool            `json:"complete"`
	View     uint32          `json:"view,omitempty"`
	Session  *fusefs.Session `json:"session,omitempty"` // nil if the kernel can't hand it over
}

// newMountRecord returns the record of a mount that is about to be made.
func newMountRecord(dir string, img *Image, opts MountOptions) (*mountRecord, error) {
	id := make([]byte, 8)
	rand.Read(id) // never fails
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	return &mountRecord{
		name: mountPrefix + hex.EncodeToString(id),
		Dir:  dir, Reference: img.Reference, Image: img.byDigest(),
		Layers: opts.Layers, Build: opts.Build,
		Boot: boot,
	}, nil
}

// bootID returns what the kernel calls its present run.
func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}

// path returns the name of the record's file in a state folder.
func (r *mountRecord) path(state string) string {
	return filepath.Join(state, mountsDir, r.name+".json")
}

// write keeps the record.
func (r *mountRecord) write(state string) error { return writeRecord(r.path(state), r) }

// remove forgets the mount.
func (r *mountRecord) remove(state string) error { return os.Remove(r.path(state)) }

// options are those that the mount was made with.
func (r *mountRecord) options() MountOptions {
	return MountOptions{IndexOptions: IndexOptions{Build: r.Build}, Layers: r.Layers}
}

// readMountRecords returns what a state folder knows of mounts. Of damaged files it
// returns the names, and what is wrong with them.
func readMountRecords(state string) (list []*mountRecord, damaged []string, err error) {
	files, err := os.ReadDir(filepath.Join(state, mountsDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	for _, f := range files {
		name, ok := strings.CutSuffix(f.Name(), ".json")
		if !ok || !isMountName(name) {
			continue // one that was being written
		}
		r := &mountRecord{name: name}
		if bad := peekRecord(r.path(state), r); bad != nil {
			damaged = append(damaged, r.path(state))
			err = errors.Join(err, fmt.Errorf("mount %s: %w", name, bad))
			continue
		}
		list = append(list, r)
	}
	return list, damaged, err
}
