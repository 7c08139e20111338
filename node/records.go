package node

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"graze/chunk"
)

// maxRecord bounds the small JSON files of the state folder, in bytes.
const maxRecord = 1 << 20

// A layerRecord says which of graze's own indexes serves a layer.
type layerRecord struct {
	Layer       chunk.Blob `json:"layer"`
	Tree        chunk.Blob `json:"tree"`
	Checkpoints chunk.Blob `json:"checkpoints,omitempty"` // none if the layer needs none

	// The sizes of the two blobs in bytes.
	TreeSize        int64 `json:"treeSize"`
	CheckpointsSize int64 `json:"checkpointsSize,omitempty"`

	// Repository has the blobs that the folder lacks. Empty: the folder has both.
	Repository string `json:"repository,omitempty"`

	// Origin says where the index came from, for a person.
	Origin string `json:"origin"`

	image chunk.Blob // that the index was published for; "" if it was not, or is kept
}

// A viewExtra is what a view's file keeps besides what package image needs: where
// those of its blobs are that are not the image's layers.
type viewExtra struct {
	Blobs []blobSource `json:"blobs,omitempty"`
}

// viewKey names the view of an image. It depends on all that decides which
// indexes the view is made of: the layers and the manifest's words about them,
// whether an index may be taken on trust, and the repository. Whoever can write
// to one repository must not change what is seen of an image in another one that
// has the same layers.
func viewKey(img *Image, onTrust bool) string {
	h := sha256.New()
	fmt.Fprintf(h, "%q %t\n", img.Repository, onTrust)
	for _, layer := range img.Layers {
		fmt.Fprintf(h, "%s %q\n", layer.Digest, layer.Annotations) // maps print in the order of their keys
	}
	return hex.EncodeToString(h.Sum(nil))
}

// fileName makes a file name of a digest or of any other text.
func fileName(s string) string {
	if digits, ok := strings.CutPrefix(s, "sha256:"); ok && len(digits) == 64 && !strings.ContainsAny(digits, "/.") {
		return digits
	}
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// readRecord reads the JSON file name into v, to use it. It returns fs.ErrNotExist where
// there is no such file, and chunk.ErrCorrupt for one that is no JSON.
func readRecord(name string, v any) error {
	err := peekRecord(name, v)
	if err == nil {
		touch(name)
	}
	return err
}

// peekRecord reads a file as readRecord does. That is no use of it.
func peekRecord(name string, v any) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	p, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err != nil {
		return err
	}
	if len(p) > maxRecord {
		return fmt.Errorf("%w: %s is larger than %d bytes", chunk.ErrCorrupt, name, maxRecord)
	}
	if err := json.Unmarshal(p, v); err != nil {
		return fmt.Errorf("%w: %s: %w", chunk.ErrCorrupt, name, err)
	}
	return nil
}

// writeRecord makes v the JSON file name, in one step.
func writeRecord(name string, v any) error {
	p, err := json.MarshalIndent(v, "", "\t")
	if err != nil {
		return err
	}
	dir := filepath.Dir(name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(append(p, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// encode returns x as it stands in a view's file.
func (x *viewExtra) encode() (json.RawMessage, error) { return json.Marshal(x) }

// isMissing reports whether err says that there is no such file or blob.
func isMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, chunk.ErrNotFound)
}
