package node

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"graze/chunk"
)

// blobDir keeps small blobs by their digest: manifests, configs and the two
// blobs of graze's own index. A blob appears under its name whole or not at
// all, so several processes can share the folder without a lock.
type blobDir string

// path returns where blob d is kept. It fails on a digest that is not a sha256.
func (b blobDir) path(d chunk.Blob) (string, error) {
	digits, ok := strings.CutPrefix(string(d), "sha256:")
	if sum, err := hex.DecodeString(digits); !ok || err != nil || len(sum) != sha256.Size || strings.ToLower(digits) != digits {
		return "", fmt.Errorf("blob digest %.100q is not sha256: and 64 hexadecimal digits", string(d))
	}
	return filepath.Join(string(b), "sha256", digits), nil
}

// open opens blob d to use it, without checking its bytes. It returns
// chunk.ErrNotFound where there is none.
func (b blobDir) open(d chunk.Blob) (*os.File, error) {
	f, err := b.peek(d)
	if err == nil {
		touch(f.Name())
	}
	return f, err
}

// peek opens blob d as open does. That is no use of it.
func (b blobDir) peek(d chunk.Blob) (*os.File, error) {
	name, err := b.path(d)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &chunk.Error{Op: "open", What: string(d), From: string(b), Err: chunk.ErrNotFound}
	}
	return f, err
}

// has reports whether there is a blob d of the given size, which is a use of it. It
// does not check the bytes.
func (b blobDir) has(d chunk.Blob, size int64) bool {
	name, err := b.path(d)
	if err != nil {
		return false
	}
	st, err := os.Stat(name)
	if err != nil || st.Size() != size {
		return false
	}
	touch(name)
	return true
}

// check compares the bytes of blob d with its digest, which is no use of it. A blob that is not what
// its name says is removed, and reported as corrupt.
func (b blobDir) check(d chunk.Blob) error {
	f, err := b.peek(d)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	if got := hexDigest(h); got != d {
		os.Remove(f.Name())
		return &chunk.Error{Op: "read", What: string(d), From: f.Name(), Err: fmt.Errorf("%w: digest is %s", chunk.ErrCorrupt, got)}
	}
	return nil
}

// list returns the digests of all blobs.
func (b blobDir) list() ([]chunk.Blob, error) {
	names, err := os.ReadDir(filepath.Join(string(b), "sha256"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var list []chunk.Blob
	for _, n := range names {
		if !strings.HasPrefix(n.Name(), ".") {
			list = append(list, chunk.Blob("sha256:"+n.Name()))
		}
	}
	return list, nil
}

// read returns the bytes of blob d, of at most limit bytes, after checking them
// against the digest. A blob that is not what its name says is removed and
// reported as missing, so that it is fetched again.
func (b blobDir) read(d chunk.Blob, limit int64) ([]byte, error) {
	f, err := b.open(d)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() > limit {
		return nil, fmt.Errorf("blob %s has %d bytes, more than the %d allowed", d, st.Size(), limit)
	}
	p := make([]byte, st.Size())
	if _, err := io.ReadFull(f, p); err != nil {
		return nil, fmt.Errorf("read blob %s: %w", d, err)
	}
	if blobDigest(p) != d {
		os.Remove(f.Name())
		return nil, &chunk.Error{Op: "read", What: string(d), From: f.Name(), Err: chunk.ErrNotFound}
	}
	return p, nil
}

// write keeps p and returns its digest.
func (b blobDir) write(p []byte) (chunk.Blob, error) {
	if d := blobDigest(p); b.has(d, int64(len(p))) {
		return d, nil
	}
	w, err := b.create()
	if err != nil {
		return "", err
	}
	defer w.abort()
	if _, err := w.Write(p); err != nil {
		return "", err
	}
	return w.commit()
}

// copy keeps the first size bytes of src as blob d, which they must be.
func (b blobDir) copy(src io.ReaderAt, size int64, d chunk.Blob) error {
	w, err := b.create()
	if err != nil {
		return err
	}
	defer w.abort()
	if _, err := io.Copy(w, io.NewSectionReader(src, 0, size)); err != nil {
		return err
	}
	if got := w.digest(); got != d {
		return &chunk.Error{Op: "copy", What: string(d), Err: fmt.Errorf("%w: digest is %s", chunk.ErrCorrupt, got)}
	}
	_, err = w.commit()
	return err
}

// create returns a writer of a new blob whose digest is not known yet.
func (b blobDir) create() (*blobWriter, error) {
	dir := filepath.Join(string(b), "sha256")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return nil, err
	}
	return &blobWriter{dir: b, file: f, hash: sha256.New()}, nil
}

// A blobWriter writes one blob. It must be ended with commit or abort.
type blobWriter struct {
	dir  blobDir
	file *os.File // nil once it has ended
	hash hash.Hash
	size int64
}

// Write implements io.Writer.
func (w *blobWriter) Write(p []byte) (int, error) {
	n, err := w.file.Write(p)
	w.hash.Write(p[:n])
	w.size += int64(n)
	return n, err
}

// digest returns the digest of what has been written.
func (w *blobWriter) digest() chunk.Blob {
	return hexDigest(w.hash)
}

// hexDigest returns the digest that h has come to.
func hexDigest(h hash.Hash) chunk.Blob {
	return chunk.Blob("sha256:" + hex.EncodeToString(h.Sum(nil)))
}

// commit makes the blob appear under its digest, which it returns.
func (w *blobWriter) commit() (chunk.Blob, error) {
	d := w.digest()
	name, err := w.dir.path(d)
	if err != nil {
		return "", err
	}
	if err := w.file.Sync(); err != nil {
		return "", err
	}
	if err := os.Rename(w.file.Name(), name); err != nil {
		return "", err
	}
	err = w.file.Close()
	w.file = nil
	return d, err
}

// abort removes what was written. After commit it does nothing.
func (w *blobWriter) abort() {
	if w.file != nil {
		w.file.Close()
		os.Remove(w.file.Name())
		w.file = nil
	}
}

// blobDigest returns the digest of p.
func blobDigest(p []byte) chunk.Blob {
	sum := sha256.Sum256(p)
	return chunk.Blob("sha256:" + hex.EncodeToString(sum[:]))
}
