package node

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"graze/chunk"
)

// vaultName is the name under which the vault's descriptor is held.
const vaultName = "credentials"

// maxVault bounds what is in a vault, in bytes.
const maxVault = 16 << 20

// A vault is memory that can outlive the process, and is in no file: whoever holds
// its descriptor keeps it. Until it is opened it takes nothing. It is safe for
// concurrent use.
type vault struct {
	mu   sync.Mutex
	file *os.File // a checksum and what is kept; guarded by mu
}

// open makes the vault the one of the process before, if held is that, or a new
// one. It returns what is in it.
func (v *vault) open(held *os.File) ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if held != nil {
		v.file = held
		return v.readLocked()
	}
	fd, err := unix.MemfdCreate("graze-credentials", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make memory that outlives the node: %w", err)
	}
	v.file = os.NewFile(uintptr(fd), vaultName)
	return nil, nil
}

// readLocked returns what is in the vault. A process that was killed while it wrote
// has left something that is not what its checksum says.
func (v *vault) readLocked() ([]byte, error) {
	p, err := io.ReadAll(io.NewSectionReader(v.file, 0, maxVault+sha256.Size))
	if err != nil || len(p) == 0 {
		return nil, err
	}
	if sum := sha256.Sum256(p[min(len(p), sha256.Size):]); !bytes.HasPrefix(p, sum[:]) {
		return nil, fmt.Errorf("%w: what the node before has left was not completed", chunk.ErrCorrupt)
	}
	return p[sha256.Size:], nil
}

// write replaces what is in the vault.
func (v *vault) write(p []byte) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.file == nil {
		return nil
	}
	if len(p) > maxVault {
		return fmt.Errorf("%d bytes are more than the %d that outlive the node", len(p), maxVault)
	}
	sum := sha256.Sum256(p)
	_, err := v.file.WriteAt(append(sum[:], p...), 0)
	return errors.Join(err, v.file.Truncate(int64(sha256.Size+len(p))))
}

// descriptor returns what is to be held.
func (v *vault) descriptor() *os.File {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.file
}
