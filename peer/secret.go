package peer

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// maxSecret bounds a file with a key, in bytes.
const maxSecret = 4096

// readSecret reads a file that nobody but its owner may read.
func readSecret(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("%s has mode %#o, so that others than its owner can read or change the secret in it: run chmod 600 %[1]s", path, mode)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxSecret {
		return nil, fmt.Errorf("%s has more than %d bytes", path, maxSecret)
	}
	return b, nil
}

// writeSecret makes a file of mode 0600. The file appears whole or not at all,
// and one that exists is left as it is: the error is then fs.ErrExist.
func writeSecret(path string, b []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".secret-*") // of mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Link(f.Name(), path)
}
