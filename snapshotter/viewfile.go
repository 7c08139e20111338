package snapshotter

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// viewFile, in a snapshot's folder, makes it a remote one and names its view.
// Labels could not do that: containerd's clients may change them.
const viewFile = "view.json"

// writeView makes dir the folder of a remote snapshot. It is on the disk before the
// database says that there is such a snapshot.
func writeView(dir string, v View) error {
	p, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, viewFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(p)
	return errors.Join(err, f.Sync(), f.Close())
}

// readView returns the view of the snapshot whose folder dir is, or nil for a plain
// one.
func readView(dir string) (*View, error) {
	p, err := os.ReadFile(filepath.Join(dir, viewFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var v View
	if err == nil {
		err = json.Unmarshal(p, &v)
	}
	if err == nil && (v.Image == "" || v.Layers < 1) {
		err = errors.New("it names no view")
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Join(dir, viewFile), err)
	}
	return &v, nil
}
