package registry

import (
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestRestart checks that a registry that is opened again has everything, down
// to the upload that was under way.
func TestRestart(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, Config{})
	subject, size := pushImage(t, r, "a/b", "latest", "image", "")
	referrer, _ := pushImage(t, r, "a/b", "", "referrer", `,"subject":`+desc(ociManifest, subject, size, ""))
	loc := startUpload(t, r, "a/b")
	wantStatus(t, do(r, "PATCH", loc, "01234"), http.StatusAccepted, "")
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}

	r = open(t, dir, Config{})
	w := do(r, "GET", "/v2/a/b/manifests/latest", "")
	wantStatus(t, w, http.StatusOK, "")
	wantHeader(t, w, "Docker-Content-Digest", subject, "Content-Type", ociManifest)
	wantStatus(t, do(r, "GET", "/v2/a/b/blobs/"+sum("image"), ""), http.StatusOK, "")
	if index, _ := getReferrers(t, r, "/v2/a/b/referrers/"+subject); len(index.Manifests) != 1 || index.Manifests[0].Digest != referrer {
		t.Errorf("referrers are %+v", index)
	}
	wantHeader(t, do(r, "GET", loc, ""), "Range", "0-4")
	wantStatus(t, do(r, "PUT", loc+"?digest="+sum("0123456789"), "56789", "Content-Range", "5-9"), http.StatusCreated, "")
}

// TestTornFiles checks that what a crash leaves behind is not served and goes
// away.
func TestTornFiles(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, Config{})
	subject, size := pushImage(t, r, "a", "latest", "image", "")
	referrer, _ := pushImage(t, r, "a", "", "referrer", `,"subject":`+desc(ociManifest, subject, size, ""))
	old, young := startUpload(t, r, "a"), startUpload(t, r, "a")
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	torn := filepath.Join(dir, tmpDir, "torn")
	if err := os.WriteFile(torn, []byte("half"), 0o644); err != nil {
		t.Fatal(err)
	}
	longAgo := time.Now().Add(-uploadTTL - time.Minute)
	if err := os.Chtimes(filepath.Join(dir, uploadPath("a", path.Base(old))), longAgo, longAgo); err != nil {
		t.Fatal(err)
	}
	// As after a crash between the referrer and its manifest.
	if err := os.Remove(filepath.Join(dir, manifestPath("a", mustDigest(t, referrer)))); err != nil {
		t.Fatal(err)
	}
	// As after a crash between a blob's repository and the shared content.
	shared := filepath.Join(dir, contentPath(mustDigest(t, sum("image"))))
	if err := os.Remove(shared); err != nil {
		t.Fatal(err)
	}

	r = open(t, dir, Config{})
	if _, err := os.Stat(torn); !os.IsNotExist(err) {
		t.Errorf("the torn file is still there: %v", err)
	}
	wantStatus(t, do(r, "GET", old, ""), http.StatusNotFound, codeBlobUploadUnknown)
	wantStatus(t, do(r, "GET", young, ""), http.StatusNoContent, "")
	if index, _ := getReferrers(t, r, "/v2/a/referrers/"+subject); len(index.Manifests) != 0 {
		t.Errorf("referrers are %+v", index)
	}
	wantStatus(t, do(r, "GET", "/v2/a/blobs/"+sum("image"), ""), http.StatusOK, "")
	pushBlob(t, r, "a", "image")
	pushBlob(t, r, "b", "image")
	wantStatus(t, do(r, "DELETE", "/v2/a/blobs/"+sum("image"), ""), http.StatusAccepted, "")
	wantStatus(t, do(r, "GET", "/v2/b/blobs/"+sum("image"), ""), http.StatusOK, "")
}

// TestSweep checks that a running registry removes abandoned uploads, but none
// that a request has open.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, Config{})
	abandoned, busy := startUpload(t, r, "a"), startUpload(t, r, "a")
	u, err := r.store.openUpload("a", path.Base(busy))
	if err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(uploadTTL + time.Minute)
	if err := r.store.sweepUploads(later); err != nil {
		t.Fatal(err)
	}
	if err := u.close(); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, do(r, "GET", abandoned, ""), http.StatusNotFound, codeBlobUploadUnknown)
	wantStatus(t, do(r, "GET", busy, ""), http.StatusNoContent, "")
	if err := r.store.sweepUploads(later.Add(sweepInterval / 2)); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, do(r, "GET", busy, ""), http.StatusNoContent, "")
	if err := r.store.sweepUploads(later.Add(sweepInterval)); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, do(r, "GET", busy, ""), http.StatusNotFound, codeBlobUploadUnknown)
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, Config{})
	_, err := New(dir, Config{})
	if err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "in use by process") {
		t.Fatalf("error is %v", err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatalf("second close: %v", err)
	}
	open(t, dir, Config{})
}

// TestSymlinks checks that even a link planted in the directory leads nowhere
// outside.
func TestSymlinks(t *testing.T) {
	outside := t.TempDir()
	d := mustDigest(t, sum("secret"))
	if err := os.WriteFile(filepath.Join(outside, d.hex), []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	r := open(t, dir, Config{})
	pushBlob(t, r, "a", "x")
	links := filepath.Join(dir, path.Dir(blobPath("a", d)))
	if err := os.RemoveAll(links); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, links); err != nil {
		t.Fatal(err)
	}
	if w := do(r, "GET", "/v2/a/blobs/"+d.String(), ""); w.Code < 400 || strings.Contains(w.Body.String(), "secret") {
		t.Errorf("answer is %d %q", w.Code, w.Body)
	}
}
